#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""agreement.py KVFOLD PERPLEXITY MODEL TEXT [CONTEXT [CHUNKS]]: the same chunks through kvfold quality and llama-perplexity.

PERPLEXITY is what tests/tools/perplexity.sh builds. Both programs read TEXT in batches of 64 with libllama's f16, q8_0 and q4_0
caches. llama-perplexity keeps the reference's log-probabilities in 16 bits in a file, so its figures carry that rounding: where it
compares f16 with itself it does not read 0. Each mean must lie within the error that it prints, plus its own reading of f16 for the
divergence. Exit code 1 when one does not.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

NUMBER = r"([-+0-9.eE]+)"
ROWS = {  # name: (pattern of llama-perplexity's line, scale, path in our JSON)
    "PPL": (rf"Mean PPL\(Q\) *: *{NUMBER} ± *{NUMBER}", 1, ("ppl",)),
    "PPL ratio": (rf"Mean PPL\(Q\)/PPL\(base\) *: *{NUMBER} ± *{NUMBER}", 1, ("ppl_ratio",)),
    "mean KLD": (rf"Mean +KLD: *{NUMBER} ± *{NUMBER}", 1, ("kld",)),
    "same top": (rf"Same top p: *{NUMBER} ± *{NUMBER} %", 0.01, ("same_top",)),
    "mean change": (rf"Mean +Δp: *{NUMBER} ± *{NUMBER} %", 0.01, ("probability_change",)),
}
SHARES = {"median": rf"Median +KLD: *{NUMBER}", "p99": rf"99.0% +KLD: *{NUMBER}", "p99_9": rf"99.9% +KLD: *{NUMBER}",
          "max": rf"Maximum KLD: *{NUMBER}"}


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    if done.returncode:
        sys.exit(f"{words[0]} failed:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    kvfold, perplexity, model, text = sys.argv[1:5]
    context, chunks = (sys.argv[5:] + ["512", "2"][len(sys.argv) - 5:])[:2]
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        base, saved = os.path.join(folder, "base"), os.path.join(folder, "saved")
        common = [perplexity, "-m", model, "-f", text, "-c", context, "-b", "64", "-ub", "64", "--chunks", chunks, "-t", "1", "-fa",
                  "on", "-ngl", "0", "--kl-divergence-base", base]
        run(*common)
        theirs = {t: run(*common, "--kl-divergence", "-ctk", t, "-ctv", t) for t in ("f16", "q8_0", "q4_0")}
        run(kvfold, "quality", "-m", model, "-f", text, "-c", context, "--chunks", chunks, "-t", "1", "--floor", "0", "--kv",
            "llama-f16,llama-q8_0,llama-q4_0", "--save", saved)
        with open(saved) as file:
            ours = {a["name"]: a for a in json.load(file)["arms"]}
    failed = 0
    rounding = float(re.search(ROWS["mean KLD"][0], theirs["f16"])[1])
    print(f"{model}, context {context}, {chunks} chunks\n{'':28}{'kvfold':>12}{'llama-perplexity':>20}{'its error':>12}{'apart':>12}")
    for name, output in theirs.items():
        arm = ours["llama-" + name]
        for row, (pattern, scale, path) in ROWS.items():
            found = re.search(pattern, output)
            value, error = float(found[1]) * scale, float(found[2]) * scale
            mine = arm[path[0]]["mean"]
            # Digits that it does not print, and what its 16 bits make of equal distributions.
            slack = 1e-5 * scale + (abs(rounding) if row == "mean KLD" else 0) + 1e-5 * abs(value)
            good = abs(mine - value) <= error + slack
            failed += not good
            print(f"{name + ' ' + row:28}{mine:12.6f}{value:20.6f}{error:12.6f}{abs(mine - value):12.2e}{'' if good else '  NOT WITHIN'}")
        for share, pattern in SHARES.items():
            value = float(re.search(pattern, output)[1])
            print(f"{name + ' KLD ' + share:28}{arm['kld'][share]:12.6f}{value:20.6f}{'':12}{abs(arm['kld'][share] - value):12.2e}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
