#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# kvfold run on a real model: JSON, turns, limits, Ctrl-C, streams. Prompts and answers are short; the point is what is reported.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [ -z "$smollm2" ]; then
    skip models
    exit 77
fi
small=("${quick[@]}" -m "$smollm2" -c 1024)
read -r default_k default_v < <("$kvfold" list --json | python3 -c '
import json, sys
print(*[p[side] for p in json.load(sys.stdin)["presets"] if p["default"] for side in "kv"])')

# The contract.
succeeds run_json run "${small[@]}" -p "What is the capital of France?" -n 12 --json
json contract '{"model", "text", "prompt_tokens", "generated_tokens", "kv", "bytes", "speed", "device"} <= set(o)'
json contract_kv '{"k", "v", "bits_per_value", "layers_folded", "layers_total", "sink", "window", "evict"} <= set(o["kv"])'
json contract_bytes 'all(isinstance(o["bytes"][k], int) and o["bytes"][k] > 0 for k in ("accounted", "host", "resident",
    "peak", "f16"))'
json contract_speed 'all(isinstance(o["speed"][k], number) and o["speed"][k] > 0 for k in ("prefill_tps", "decode_tps"))'
json contract_device 'o["device"]["attend"] and o["device"]["fallback"] is None'
json default_codecs "o['kv']['k'] == '$default_k' and o['kv']['v'] == '$default_v'"
json answer '"Paris" in o["text"] and not o["interrupted"] and o["chat_template"] == "chatml"'
json all_layers 'o["kv"]["layers_folded"] == 30 == o["kv"]["layers_total"] and o["kv"]["not_folded"] == [] and o["kv"]["evict"]
    == "none"'
json tokens_add_up 'o["tokens"]["held"] == o["tokens"]["sink"] + o["tokens"]["body"] + o["tokens"]["window"]'
json tokens_held 'o["prompt_tokens"] + o["generated_tokens"] - 1 <= o["tokens"]["held"] <= o["prompt_tokens"] +
    o["generated_tokens"]'
json f16_of_the_context 'o["bytes"]["f16"] == 1024 * 30 * 2 * 3 * 64 * 2 and o["context"] == 1024'
holds json_leaves_stderr_to_notes grep -q "30 of 30 layers folded" "$work/err"
cp "$work/out" "$work/first.json"

# Text and report, then text alone.
succeeds run_text run "${small[@]}" -p "What is the capital of France?" -n 12
for line in "codec .*K $default_k, V $default_v" "bits a value .* all-in" "layers folded *30 of 30" "attention *cpu, [a-z]" \
    "tokens held .*sink.*body.*window" \
    "accounted " "resident " "host " "in f16" "peak " "prompt .*tokens/s" "generated .*tokens/s"; do
    holds "report_has: $line" grep -Eq "$line" "$work/out"
done
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["text"])' "$work/first.json" >"$work/text"
succeeds run_no_report run "${small[@]}" -p "What is the capital of France?" -n 12 --no-report
holds text_alone_equals_json cmp "$work/text" "$work/out"

# The size that plan promises is the size that a run has.
cp "$work/first.json" "$work/out"
full=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["bytes"]["full"])' "$work/first.json")
kv plan "$smollm2" -c 1024 --json
json plan_agrees_with_run "o['bytes_total'] == $full"

# Several turns: the second one feeds only what is new, and the model remembers.
printf 'My name is Anna. Say hello.\n\nWhat is my name?\n' >"$work/in"
succeeds turns run "${small[@]}" -n 24 --json
json two_turns 'len(o["turns"]) == 2 and o["turns"][0]["kept"] == 0'
json turn_keeps_the_cache 'o["turns"][1]["kept"] >= o["turns"][0]["prompt_tokens"] + o["turns"][0]["generated_tokens"] - 1'
json turn_feeds_the_new_part 'o["turns"][1]["prompt_tokens"] < 20'
json turns_add_up 'o["prompt_tokens"] == sum(t["prompt_tokens"] for t in o["turns"]) and o["text"] == "\n".join(t["text"] for t
    in o["turns"])'
for n in 0 3; do
    succeeds "raw_turns_$n" run "${small[@]}" --raw -n $n --json
    cp "$work/out" "$work/raw_$n.json"
done
json raw_turns_lose_nothing '[t["stop_reason"] for t in o["turns"]] == ["length"] * 2 and o["tokens"]["held"] ==
    o["prompt_tokens"] + 5'
json raw_turns_feed_the_same "[t['prompt_tokens'] for t in o['turns']] == [t['prompt_tokens'] for t in
    json.load(open('$work/raw_0.json'))['turns']]"
printf 'What is\\\n my name?\n' >"$work/in"
succeeds turn_after_prompt run "${small[@]}" -cnv -p "My name is Anna." -n 6 --json
json turn_after_prompt_counts 'len(o["turns"]) == 2'
printf 'nul\000byte\nhello\n' >"$work/in"
kv run "${small[@]}" -n 2 --json
holds turn_with_zero_byte grep -q "a line of stdin is no text" "$work/err"
json turn_with_zero_byte_is_left_out 'len(o["turns"]) == 1'
printf '' >"$work/in"
succeeds no_turns run "${small[@]}" --json
json no_turns_report 'o["turns"] == [] and o["prompt_tokens"] == 0 and o["stop_reason"] == "none"'
rm "$work/in"

# Limits.
succeeds predict_nothing run "${small[@]}" -p hello -n 0 --json
json predict_nothing_report 'o["generated_tokens"] == 0 and o["text"] == "" and o["stop_reason"] == "length"'
succeeds context_full run "${quick[@]}" -m "$smollm2" -c 48 -p hello --ignore-eos --json
json context_full_report 'o["stop_reason"] == "context" and o["tokens"]["held"] == 48 and o["prompt_tokens"] +
    o["generated_tokens"] == 49'
holds context_full_sentence grep -q "context of 48 tokens (-c) is full" "$work/err"
holds context_too_short_to_code grep -q "newest 64 to 127 stay exact: in a context of 48 nothing is ever coded" "$work/err"
seq 1 200 >"$work/long.txt"
refuses prompt_too_long 2 "prompt has [0-9]+ tokens, the context \(-c\) holds 64" run "${quick[@]}" -m "$smollm2" -c 64 -f \
    "$work/long.txt"
succeeds reverse_prompt run "${small[@]}" -p "What is the capital of France?" -r France --json
json reverse_prompt_report 'o["stop_reason"] == "reverse_prompt" and o["text"].endswith("France")'

# A prompt of several batches: progress on stderr, the same tokens in other batches.
succeeds long_prompt run "${small[@]}" --raw -f "$work/long.txt" -n 4 --json
json long_prompt_counts 'o["prompt_tokens"] > 510 and o["tokens"]["sink"] == 4 and o["tokens"]["body"] > 0'
json long_prompt_continues 'o["text"].strip().startswith("201")'
holds long_prompt_progress grep -Eq "prompt [0-9]+ of [0-9]+ tokens, [0-9]+ s left" "$work/err"
json resident_near_accounted 'abs(o["bytes"]["resident"] / o["bytes"]["accounted"] - 1) < 0.1'

# Sampling, templates, overrides.
succeeds seed_1 run "${small[@]}" -p "Tell me a story." --temp 1.5 -s 7 -n 12 --json
cp "$work/out" "$work/seed"
succeeds seed_2 run "${small[@]}" -p "Tell me a story." --temp 1.5 -s 7 -n 12 --json
json seed_repeats "o['text'] == json.load(open('$work/seed'))['text']"
succeeds raw run "${small[@]}" --raw -p "one two three four" -n 4 --json
json raw_is_raw 'o["chat_template"] == "none" and o["prompt_tokens"] <= 5'
succeeds template run "${small[@]}" --chat-template gemma -p hello -n 2 --display-prompt
holds template_is_shown grep -q "<start_of_turn>user" "$work/out"
succeeds overrides run "${small[@]}" -p hello -n 2 --kv f16/f16 --kv-layer 0,1=q8_0 --kv-layer 29=f16/kivi4 --json
json overrides_fold_three 'o["kv"]["layers_folded"] == 3'
succeeds escape run "${small[@]}" --raw -p 'a\tb' -n 0 --display-prompt
holds escape_on grep -q "^a	b" "$work/out"
succeeds no_escape run "${small[@]}" --raw -p 'a\tb' -n 0 --display-prompt --no-escape
holds escape_off grep -q '^a\\tb' "$work/out"

# Ctrl-C: while it generates, and while it reads a prompt.
interrupt ctrl_c "layers folded" 0 run "${small[@]}" -p "Tell me a story." --ignore-eos --json
json ctrl_c_report 'o["interrupted"] is True and o["stop_reason"] == "interrupted" and o["kv"]["layers_folded"] == 30'
seq 1 1500 >"$work/longer.txt"
interrupt ctrl_c_prompt "prompt [0-9]* of" 0 run "${quick[@]}" -m "$smollm2" --raw -f "$work/longer.txt" --json
json ctrl_c_prompt_report 'o["interrupted"] is True and o["generated_tokens"] == 0 and 0 < o["tokens"]["held"] < 4000'
interrupt ctrl_c_text "layers folded" 0 run "${small[@]}" -p "Tell me a story." --ignore-eos
holds ctrl_c_text_report grep -q "stopped: interrupted" "$work/out"
mkfifo "$work/fifo"
exec 9<>"$work/fifo" # keeps it open: the program waits for a turn that never comes
input="$work/fifo" interrupt ctrl_c_waiting "layers folded" 0 run "${small[@]}" --json
exec 9>&-
json ctrl_c_waiting_report 'o["interrupted"] is True and o["turns"] == []'

# A full disk.
for form in --json --no-report; do
    "$kvfold" run "${small[@]}" -p hello -n 2 $form >/dev/full 2>"$work/err"
    rc=$?
    holds "full_disk $form" test "$rc" -eq 2 -a "$(grep -c 'cannot write to stdout: No space left' "$work/err")" -eq 1
done

# A chat template that libllama does not know, and a context beyond training.
python3 - "$smollm2" "$work/template.gguf" <<'PYTHON'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
at = data.index(b"tokenizer.chat_template")
end = at + 2000
data[at:end] = data[at:end].replace(b"<|im_start|>", b"<!im_start!>")
open(sys.argv[2], "wb").write(data)
PYTHON
refuses template_not_known 2 "--chat-template NAME.*--raw" run "${quick[@]}" -m "$work/template.gguf" -c 256 -p hello
succeeds template_chosen run "${quick[@]}" -m "$work/template.gguf" -c 256 -p hello -n 1 --chat-template chatml
rm "$work/template.gguf"
succeeds beyond_training run "${quick[@]}" -m "$smollm2" -c 9000 -p hello -n 1 --json
holds beyond_training_warns_once test "$(grep -c "above the training length 8192" "$work/err")" -eq 1

if [ -n "$gemma" ]; then
    succeeds gemma run "${quick[@]}" -m "$gemma" -c 512 -p "The capital of France is" -n 3 --json
    json gemma_report 'o["kv"]["layers_folded"] == 18 == o["kv"]["layers_total"] and o["chat_template"] == "none"'
    holds gemma_template_said_once test "$(grep -c "no chat template" "$work/err")" -eq 1
else
    skip gemma
fi
finish
