#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Wrong use: each refused with one sentence that names the option, the value and what is allowed. No model is needed.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

refuses unknown_command 1 "'rnu'.*nearest.*'run'" rnu
refuses unknown_option 1 "'--modle'.*nearest.*'--model'" run --modle x
refuses unknown_short_option 1 "'-ctj'.*nearest.*'-ctk'" run -ctj x
refuses unknown_command_near_nothing 1 "unknown command 'xyzzy' .kvfold --help" xyzzy
refuses unknown_option_near_nothing 1 "unknown option '--frobnicate' .kvfold help run" run --frobnicate
refuses unknown_option_of_plan 1 "'--contxt'" plan --contxt 5
refuses value_missing 1 "-n needs a value" run -m x -n
refuses value_not_wanted 1 "--json takes no value" run --json=yes
refuses value_not_a_number 1 "--temp: 'warm' is not a number from 0 to 1000" run --temp warm
refuses value_not_a_number_at_all 1 "--top-p: 'nan'" run --top-p nan
refuses value_with_a_tail 1 "-n: '12x'" run -n 12x
refuses value_too_large 1 "--sink: '65' is not a whole number from 0 to 64" run --sink 65
refuses value_far_too_large 1 "-c: '99999999999999999999'" run -c 99999999999999999999
refuses value_too_small 1 "--window: '-1'" run --window -1
refuses word_too_many 1 "unexpected word 'world'" run -p hello world
refuses flash_attention_off 1 "-fa: 'off'.*cannot be off" run -fa off
refuses policy_unknown 1 "--evict: policy 'lru' does not exist; there are: none window" run -m x -p a --evict lru
refuses policy_without_budget 1 "--evict: policy 'knorm' needs a budget" plan -m x --evict knorm
refuses policy_budget_of_no_unit 1 "--evict: .*budget is '64Mib'.*tokens, 0.1% to 100%, or a size in KiB" run -m x -p a --evict knorm:budget=64Mib
refuses policy_budget_zero 1 "--evict: .*budget is '0'" run -m x -p a --evict knorm:budget=0
refuses policy_budget_too_small 1 "budget of 100 tokens is less than the 132.*first 4 and the newest 128" run -m x -p a --window 128 --evict window:budget=100
refuses policy_of_an_arm 1 "--evict: policy 'knorm' has no option 'topk'" quality -m x -f y --kv f16/f16,window=0,evict=knorm:budget=99,topk=3
refuses preset_unknown 1 "'tinny' is neither a preset .f16, safe, near, balanced.*nor codecs K/V" run -m x -p a --kv tinny
refuses preset_is_a_codec 1 "--kv kivi4/kivi4" run -m x -p a --kv kivi4
refuses preset_is_a_codec_for_keys 1 "'qjl' is a codec.*--kv qjl/uni4" run -m x -p a --kv qjl
refuses preset_is_a_bad_codec 1 "group is '128', but may be 16, 32 or 64 tokens for keys" run -m x -p a --kv kivi4:group=128
refuses preset_is_too_wide_a_codec 1 "uni2 uni3 uni4" run -m x -p a --kv uni9
refuses preset_steers_terminal 1 "'[?]\[31mX'" run -m x -p a --kv $'\e[31mX'
refuses codec_too_large_for_all 1 "m is '65536', but may be a multiple of 16 from 16 to four times the head size" run -m x -p a --kv qjl:m=65536/uni4
refuses codec_fits_large_heads 2 "No such file" plan -m nosuch.gguf --kv qjl:m=1024/uni4
refuses codec_of_keys_for_values 1 "--kv: codec 'qjl' is a method for keys" run -m x -p a --kv uni4/qjl:m=64
refuses codec_unknown_lists_families 1 "--kv: codec 'foo' does not exist; there are: f16 q8_0 q4_0 kivi4 uni4 turbo4 tcq3 [a-z0-9 ]*$" run -m x -p a --kv foo/uni4
refuses codec_seed_of_nothing 1 "--kv: codec 'uni': seed=3 changes nothing here" run -m x -p a --kv uni4:rot=none,seed=3/uni4
refuses option_without_value 1 "--kv: codec 'uni': option 'seed=' has no value" run -m x -p a --kv uni4:seed=/uni4
refuses option_missing 1 "--kv: codec 'uni': nothing follows a ':'" run -m x -p a --kv uni4:/uni4
refuses json_without_report 1 "--json prints the report" run -m x -p a --json --no-report
refuses rope_scale_twice 1 "--rope-freq-scale is 1 / --rope-scale" run -m x -p a --rope-scale 2 --rope-freq-scale 0.5
refuses rope_scale_of_none 1 "--rope-scaling none leaves positions.*--rope-scale" run -m x -p a --rope-scale 2 --rope-scaling none
refuses pair_malformed 1 "'kivi4/'.*K/V" run -m x -p a --kv kivi4/
refuses pair_of_three 1 "'a/b/c'" run -m x -p a --kv a/b/c
refuses codec_unknown 1 "-ctk: .*'q5_1'.*there are: f16 q8_0" run -m x -p a -ctk q5_1
refuses codec_unknown_value 1 "--kv: .*nosuch" plan -m x --kv f16/nosuch
refuses codec_bits 1 "kivi5" run -m x -p a --kv kivi5/kivi4
refuses layer_override_malformed 1 "--kv-layer: '3-0=f16' is not of the form" plan -m x --kv-layer 3-0=f16
refuses layer_override_range_open 1 "--kv-layer: '0-=f16'" plan -m x --kv-layer 0-=f16
refuses layer_override_takes_ranges 2 "No such file" plan -m nosuch.gguf --kv-layer 0-3,5=f16
refuses preset_for_keys_alone 1 "-ctk: 'safe' is a preset.*--kv safe" plan -m x -ctk safe
refuses codec_too_long 1 "--kv: 'uni4:.*has a codec of more than 127 characters" plan -m x --kv "uni4:$(printf 'x%.0s' $(seq 200))/uni4"
refuses seal_each_and_window 1 "--seal-each means that no window" quality -m x -f y --seal-each --window 5
refuses seal_each_and_window_of_an_arm 1 "--seal-each means that no window" quality -m x -f y --seal-each --kv uni4/uni4,window=7
refuses layer_override_empty 1 "--kv-layer: '=f16'" plan -m x --kv-layer =f16
refuses layer_override_trailing_comma 1 "--kv-layer: '1,=f16'" plan -m x --kv-layer 1,=f16
refuses layer_override_codec 1 "--kv-layer: .*nosuch" plan -m x --kv-layer 0=nosuch
refuses cpu_unknown 1 "--cpu: 'mmx'.*scalar" plan -m x --cpu mmx
refuses raw_with_template 1 "--raw" run -m x -p a --raw --chat-template chatml
refuses model_missing_option 1 "-m FILE" run -p a
refuses rope_scaling_kind 1 "--rope-scaling: 'ntk'.*none linear yarn" run --rope-scaling ntk
refuses bench_unknown_command 1 "." bench nosuch

kv
holds no_command_exits_1 test "$rc" -eq 1
holds no_command_shows_usage grep -q "usage: kvfold COMMAND" "$work/err"

# Help and manual: one source, docs/cli.md holds the very text (update_manual.py PROGRAM MANUAL writes it there).
for command in run plan inspect calibrate tune list bench "bench ops" "bench attend" "bench e2e" "bench compare" report doctor; do
    # shellcheck disable=SC2086
    succeeds "help_$command" $command --help
    cp "$work/out" "$work/help"
    # shellcheck disable=SC2086
    [ "$command" != "${command% *}" ] || kv help $command
    holds "help_${command}_both_ways" cmp "$work/help" "$work/out"
    sed -n "/<!-- help: $command -->/,/<!-- end -->/p" "$source_dir/docs/cli.md" | sed '1,2d' | sed '$d' | sed '$d' \
    >"$work/manual"
    holds "manual_of_$command" diff "$work/manual" "$work/help"
done
refuses help_of_unknown 1 "'nosuch'" help nosuch
succeeds help --help
succeeds version --version
for word in "kvfold [0-9]" "build " "libllama [0-9]" "ggml [0-9]" "cpu [a-z]" "compiler "; do
    holds "version_says_${word%% *}" grep -Eq "$word" "$work/out"
done
succeeds version_json --version --json
json version_object 'all(isinstance(o[k], str) and o[k] for k in ("version", "build", "libllama", "ggml", "cpu", "compiler"))'

# A broken stdout is an error, never a silent success.
for args in "list" "list --json" "--help" "run --help" "--version"; do
    # shellcheck disable=SC2086
    "$kvfold" $args >/dev/full 2>"$work/err"
    rc=$?
    holds "full_disk: $args" test "$rc" -eq 2 -a "$(grep -c 'cannot write to stdout' "$work/err")" -eq 1
done

kv run -m nosuch.gguf -p a -n 1 -n 2
holds option_repeated grep -q "warning: -n is given more than once: the last one holds" "$work/err"
kv run -m nosuch.gguf -p a -n 1 --kv-layer 0=f16 --kv-layer 1=f16 -r a -r b
holds lists_may_repeat test "$(grep -c "more than once" "$work/err")" -eq 0
KVFOLD_CPU=nosuch kv run -m x -p a
holds cpu_of_the_environment grep -q "KVFOLD_CPU: 'nosuch' is no instruction set; built in: scalar" "$work/err"
holds cpu_of_the_environment_code [ "$rc" -eq 1 ]
finish
