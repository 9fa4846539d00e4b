#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# list, plan, inspect, doctor: their JSON, and the shapes that headers describe.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make() { python3 "$here/gguf.py" "$@"; }

succeeds list list
succeeds list_json list --json
json list_contract 'all(isinstance(o[k], list) and o[k] for k in ("codecs", "policies", "devices", "presets"))'
json list_codecs '{"f16", "q8_0", "q4_0", "kivi"} <= {c["name"] for c in o["codecs"]} and all(c["examples"] for c in o["codecs"])'
json list_bits 'all(0 < e[b] <= 16 for c in o["codecs"] for e in c["examples"] for b in ("bits_code_k", "bits_code_v") if e[b]
    is not None)'
json list_one_default 'sum(p["default"] for p in o["presets"]) == 1 and [p["name"] for p in o["policies"] if p["default"]] == ["none"]'
json list_scalar_present '[d["present"] for d in o["devices"] if d["name"] == "scalar"] == [True]'

# Eight layers that hold n tokens in f16: the size is known by hand.
base=(general.architecture=llama llama.block_count=8 llama.context_length=4096 llama.embedding_length=256
    llama.attention.head_count=4 llama.attention.head_count_kv=2)
make "$work/plain.gguf" "${base[@]}"
succeeds plan_plain plan -m "$work/plain.gguf" -c 1024 --json
json plan_contract 'all(isinstance(o[k], number) for k in ("bytes_per_token", "bytes_total", "bytes_f16")) and
    isinstance(o["fits"], bool)'
json plan_f16_by_hand 'o["bytes_f16"] == 8 * 1024 * 2 * 2 * 64 * 2 and o["bytes_per_token_f16"] == 8 * 2 * 2 * 64 * 2'
json plan_smaller 'o["bytes_total"] < o["bytes_f16"] and o["kv"]["layers_folded"] == 8 == o["kv"]["layers_total"]'
json plan_fits 'o["fits"] and o["context_largest"] > 1024'
succeeds plan_bare_word plan "$work/plain.gguf" --json
json plan_default_context 'o["context"] == 4096 == o["context_train"]'
json plan_table '[r["context"] for r in o["table"]] == [2048, 4096] and o["table"][1]["bytes"] == o["bytes_total"]'
json plan_slope 'abs((o["table"][1]["bytes"] - o["table"][0]["bytes"]) / 2048 / o["bytes_per_token"] - 1) < 0.001'
succeeds plan_f16 plan -m "$work/plain.gguf" -c 2048 --kv f16/f16 --json
json plan_f16_is_not_folded 'o["kv"]["layers_folded"] == 0 and o["bytes_per_token"] >= o["bytes_per_token_f16"]'
succeeds plan_huge plan -m "$work/plain.gguf" -c 2000000000 --json
json plan_does_not_fit 'not o["fits"] and o["context_largest"] < 2000000000'
succeeds plan_override plan -m "$work/plain.gguf" -c 2048 --kv f16/f16 --kv-layer 0,7=q4_0 --kv-layer 3=f16/q8_0 --json
json plan_override_counts 'o["kv"]["layers_folded"] == 3'
succeeds plan_preset plan -m "$work/plain.gguf" --kv safe --json
json plan_preset_named 'o["kv"]["preset"] == "safe"'
succeeds plan_sink_window plan -m "$work/plain.gguf" --sink 0 --window 128 --json
json plan_sink_window_shown 'o["kv"]["sink"] == 0 and o["kv"]["window"] == 128'
succeeds plan_table plan -m "$work/plain.gguf"
holds plan_table_marks_context grep -q "^>  *4096 " "$work/out"

# Shapes.
shape() { # NAME EXPRESSION KEYS...
    make "$work/$1.gguf" "${@:3}"
    succeeds "inspect_$1" inspect "$work/$1.gguf" --json
    json "shape_$1" "$2"
}
shape heads "[layers[0][k] for k in ('q_heads', 'kv_heads', 'k_dim', 'v_dim', 'window', 'share')] == [4, 2, 64, 64, 0, -1]" \
    "${base[@]}"
shape lengths "(layers[0]['k_dim'], layers[0]['v_dim']) == (96, 80)" "${base[@]}" llama.attention.key_length=96 \
    llama.attention.value_length=80
shape no_kv_key "layers[0]['kv_heads'] == 4" "${base[@]::5}"
gemma3=(general.architecture=gemma3 gemma3.block_count=13 gemma3.context_length=8192 gemma3.embedding_length=64
    gemma3.attention.head_count=4 gemma3.attention.head_count_kv=1)
shape no_window "all(x['window'] == 0 for x in layers)" "${gemma3[@]}"
shape built_in_windows "[x['layer'] for x in layers if x['window'] == 0] == [5, 11] and layers[0]['window'] == 512" "${gemma3[@]}" \
    gemma3.attention.sliding_window=512
shape period "[x['layer'] for x in layers if x['window'] == 0] == [2, 5, 8, 11]" "${gemma3[@]}" gemma3.attention.sliding_window=512 \
    gemma3.attention.sliding_window_pattern=3
shape pattern "[x['window'] for x in layers][:4] == [0, 512, 512, 0]" "${gemma3[@]}" gemma3.attention.sliding_window=512 \
    'gemma3.attention.sliding_window_pattern=[false,true,true,false,true,true,true,true,true,true,true,true,true]'
shape window_lengths "(layers[0]['k_dim'], layers[5]['k_dim']) == (32, 16)" "${gemma3[@]}" gemma3.attention.sliding_window=512 \
    gemma3.attention.key_length_swa=32
shape shared "[x['share'] for x in layers] == [-1] * 9 + [7, 7, 8, 7]" "${gemma3[@]}" gemma3.attention.sliding_window=512 \
    gemma3.attention.shared_kv_layers=4 \
    'gemma3.attention.sliding_window_pattern=[true,true,true,true,true,true,true,true,false,true,true,false,true]'
shape first_of_period "[x['layer'] for x in layers if x['window'] == 0] == [0, 4]" general.architecture=smallthinker \
    smallthinker.block_count=6 \
    smallthinker.embedding_length=64 smallthinker.attention.head_count=4 smallthinker.attention.sliding_window=128
shape window_ignored "all(x['window'] == 0 for x in layers)" "${base[@]}" llama.attention.sliding_window=512
shape hybrid "[x['attention'] for x in layers] == [False, True, False, True]" general.architecture=lfm2 lfm2.block_count=4 \
    lfm2.context_length=1024 \
    lfm2.embedding_length=64 lfm2.attention.head_count=4 'lfm2.attention.head_count_kv=[0,2,0,2]'
shape interval "[x['layer'] for x in layers if x['attention']] == [3, 7]" general.architecture=qwen35 qwen35.block_count=8 \
    qwen35.embedding_length=64 qwen35.attention.head_count=4 qwen35.full_attention_interval=4
shape latent "layers[0]['v_in_k'] and (layers[0]['k_dim'], layers[0]['v_dim'], layers[0]['kv_heads']) == (160, 128, 1)" \
    general.architecture=deepseek2 \
    deepseek2.block_count=2 deepseek2.context_length=1024 deepseek2.embedding_length=64 deepseek2.attention.head_count=4 \
    deepseek2.attention.head_count_kv=1 deepseek2.attention.key_length=160 deepseek2.attention.value_length=128 \
    deepseek2.attention.key_length_mla=48 deepseek2.attention.value_length_mla=32
shape prediction_layers "len(layers) == 7" "${base[@]}" llama.nextn_predict_layers=1

# Sizes of those shapes.
succeeds plan_windows plan -m "$work/built_in_windows.gguf" -c 8192 --kv q8_0/q8_0 --json
json plan_windows_f16 'o["bytes_f16"] == (2 * 8192 + 11 * 768) * 2 * 16 * 2'
json plan_windows_slope 'o["bytes_per_token_f16"] == 2 * 2 * 16 * 2'
succeeds plan_shared plan -m "$work/shared.gguf" -c 8192 --kv q8_0/q8_0 --json
json plan_shared_f16 'o["bytes_f16"] == (1 * 8192 + 8 * 768) * 2 * 16 * 2'
succeeds plan_hybrid plan -m "$work/hybrid.gguf" -c 512 --kv q8_0/q8_0 --json
json plan_hybrid_counts 'o["bytes_f16"] == 2 * 512 * 2 * 2 * 16 * 2 and (o["kv"]["layers_attention"], o["kv"]["layers_total"])
    == (2, 4)'
succeeds plan_latent plan -m "$work/latent.gguf" -c 512 --kv q8_0/q8_0 --json
json plan_latent_f16 'o["bytes_f16"] == 2 * 512 * 160 * 2'
refuses plan_latent_codec 2 "latent" plan -m "$work/latent.gguf" -c 512 --kv kivi4/kivi4
refuses plan_without_length 1 "0 tokens as its training length.*with -c" plan -m "$work/interval.gguf"

# doctor
succeeds doctor doctor
holds doctor_lines grep -Eq "^ok +libllama" "$work/out"
succeeds doctor_json doctor --json
json doctor_contract 'o["ok"] is True and {"libllama", "processor", "memory"} <= {c["check"] for c in o["checks"]}'
json doctor_states 'all(c["status"] in ("ok", "warn", "fail") and c["text"] for c in o["checks"])'
printf 'no model' >"$work/text.gguf"
kv doctor -m "$work/text.gguf" --json
holds doctor_bad_model_code test "$rc" -eq 3
json doctor_bad_model '[c["status"] for c in o["checks"] if c["check"] == "model"] == ["fail"] and o["ok"] is False'
KVFOLD_CPU=nosuch kv doctor --json
holds doctor_bad_cpu_code test "$rc" -eq 2

if [ -n "$smollm2" ]; then
    succeeds doctor_model doctor "$smollm2" --json
    json doctor_template '[c["status"] for c in o["checks"] if c["check"] in ("model", "chat template")] == ["ok", "ok"]'
    succeeds plan_model plan "$smollm2" -c 4096 --kv kivi4/kivi4 --json
    json plan_model_share 'o["bytes_total"] + o["bytes_host"] <= 0.42 * o["bytes_f16"]'
else
    skip models
fi
if [ -n "$gemma" ]; then
    succeeds inspect_gemma inspect "$gemma" --json
    json gemma_windows '[x["layer"] for x in o["layers"] if x["window"] == 0] == [5, 11, 17] and o["layers"][0]["window"] == 512'
else
    skip gemma
fi
finish
