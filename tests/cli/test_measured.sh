#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What `kvfold list` says of the presets is what docs/measured records of them, of presets as they are now. No model is needed.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

succeeds list_json list --json
cat >"$work/compare.py" <<'END'
import glob, json, os, sys

def recorded(path, preset):
    """The row that a result has for a preset."""
    result = json.load(open(path))
    arms = [a for a in result["arms"] if a["name"] == preset["name"] and not a["libllama"]]
    assert len(arms) == 1, "%s: %d arms %s" % (path, len(arms), preset["name"])
    arm = arms[0]
    for key in ("k", "v", "sink", "window"):
        assert arm[key] == preset[key], "%s: %s was %s/%s then, sink %s, window %s; measure again" % (
            path, arm["name"], arm["k"], arm["v"], arm["sink"], arm["window"])
    assert arm["complete"] and not arm["seal_each"] and "layers" not in arm, path
    return {"model": os.path.basename(result["model"]["file"])[:-len(".gguf")], "context": result["context"],
            "positions": arm["positions"], "kld": arm["kld"]["mean"], "kld_error": arm["kld"]["error"]}

paths = sorted(glob.glob(os.path.join(sys.argv[2], "docs/measured/*.json")))
assert len(paths) >= 2, "two models"
for preset in json.load(open(sys.argv[1]))["presets"]:
    want = [recorded(path, preset) for path in paths]
    assert preset["measured"] == want, "%s: listed %s, recorded %s" % (preset["name"], preset["measured"], want)
END
holds list_is_what_was_measured python3 "$work/compare.py" "$work/out" "$source_dir"
python3 "$source_dir/scripts/measured.py" "$source_dir"/docs/measured/*.json >"$work/measured.def"
holds measured_def_is_written_by_its_script cmp "$work/measured.def" "$source_dir/src/codec/measured.def"
succeeds list_table list
# The first two digits of the default's divergence stand in its row, one a model.
python3 - "$source_dir" >"$work/want" <<'END'
import glob, json, sys
for path in sorted(glob.glob(sys.argv[1] + "/docs/measured/*.json")):
    arm, = [a for a in json.load(open(path))["arms"] if a["name"] == "balanced"]
    print("%.2g" % arm["kld"]["mean"])
END
row=$(grep -E '^  balanced ' "$work/out")
while read -r figure; do holds "list_shows_$figure" grep -Fqw -- "$figure" <<<"$row"; done <"$work/want"
finish
