#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Model files that are missing, damaged, truncated or impossible, for every command that opens one.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make() { python3 "$here/gguf.py" "$@"; }
llama=(general.architecture=llama llama.block_count=2 llama.context_length=4096 llama.embedding_length=64
    llama.attention.head_count=4 llama.attention.head_count_kv=2)

printf 'hello, this is no model at all, only some text\n' >"$work/text.gguf"
printf 'GG' >"$work/two.gguf"
printf 'GGUF\003\000' >"$work/six.gguf"
printf 'GGUF\000\000\000\003aaaaaaaaaaaaaaaaaaaaaaaaa' >"$work/other_order.gguf"
printf 'GGUF\003\000\000\000\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377' >"$work/counts.gguf"
: >"$work/empty.gguf"
make "$work/keys_cut.gguf" "${llama[@]}" --cut 30
make "$work/data_cut.gguf" "${llama[@]}" --tensor 4096 --cut 100
make "$work/no_arch.gguf" llama.block_count=2
make "$work/no_layers.gguf" general.architecture=llama llama.block_count=0
make "$work/many_layers.gguf" general.architecture=llama llama.block_count=100000
make "$work/text_layers.gguf" general.architecture=llama llama.block_count=many
make "$work/heads.gguf" "${llama[@]}" llama.attention.key_length=0
make "$work/ratio.gguf" "${llama[@]::4}" llama.attention.head_count=4 llama.attention.head_count_kv=3
make "$work/short_array.gguf" "${llama[@]::4}" llama.attention.head_count=4 'llama.attention.head_count_kv=[2]'
make "$work/encoder.gguf" "${llama[@]}" llama.attention.causal=false
make "$work/sparse.gguf" "${llama[@]}" llama.attention.indexer.head_count=4
make "$work/second.gguf" "${llama[@]}" split.count=2 split.no=1
make "$work/first-00001-of-00002.gguf" "${llama[@]}" split.count=2 split.no=0

mkfifo "$work/pipe"

for command in run plan inspect; do
    args=(-m)
    [ $command != run ] || args=(-p hello -m)
    refuses "$command/missing" 2 "'$work/nope'.*No such file" $command "${args[@]}" "$work/nope"
    refuses "$command/directory" 2 "directory" $command "${args[@]}" "$work"
    refuses "$command/pipe" 2 "pipe or a device" $command "${args[@]}" "$work/pipe"
    refuses "$command/empty" 3 "empty" $command "${args[@]}" "$work/empty.gguf"
    refuses "$command/text" 3 "not a GGUF" $command "${args[@]}" "$work/text.gguf"
    refuses "$command/two_bytes" 3 "truncated" $command "${args[@]}" "$work/two.gguf"
    refuses "$command/six_bytes" 3 "truncated" $command "${args[@]}" "$work/six.gguf"
    refuses "$command/byte_order" 3 "byte order" $command "${args[@]}" "$work/other_order.gguf"
    refuses "$command/counts" 3 "damaged" $command "${args[@]}" "$work/counts.gguf"
    refuses "$command/keys_cut" 3 "damaged or truncated" $command "${args[@]}" "$work/keys_cut.gguf"
    refuses "$command/data_cut" 3 "truncated: it has [0-9]+ bytes, its header promises [0-9]+" $command "${args[@]}" \
    "$work/data_cut.gguf"
    refuses "$command/no_architecture" 3 "general.architecture" $command "${args[@]}" "$work/no_arch.gguf"
    refuses "$command/no_layers" 3 "llama.block_count is 0" $command "${args[@]}" "$work/no_layers.gguf"
    refuses "$command/many_layers" 3 "llama.block_count is 100000" $command "${args[@]}" "$work/many_layers.gguf"
    refuses "$command/text_for_a_number" 3 "llama.block_count" $command "${args[@]}" "$work/text_layers.gguf"
    refuses "$command/head_size" 3 "key_length is 0" $command "${args[@]}" "$work/heads.gguf"
    refuses "$command/head_ratio" 3 "head_count_kv is 3" $command "${args[@]}" "$work/ratio.gguf"
    refuses "$command/short_array" 3 "head_count_kv" $command "${args[@]}" "$work/short_array.gguf"
    refuses "$command/second_part" 2 "file 2 of a split model" $command "${args[@]}" "$work/second.gguf"
    refuses "$command/part_missing" 2 "first-00002-of-00002.gguf" $command "${args[@]}" "$work/first-00001-of-00002.gguf"
    [ $command != inspect ] || continue
    refuses "$command/encoder" 2 "encoder" $command "${args[@]}" "$work/encoder.gguf"
    refuses "$command/sparse" 2 "sparse attention" $command "${args[@]}" "$work/sparse.gguf"
done

if [ -n "$smollm2" ]; then
    head -c 1000000 "$smollm2" >"$work/half.gguf"
    refuses truncated_model 3 "truncated" run -m "$work/half.gguf" -p hello
    { head -c 40 "$smollm2" && head -c 400 /dev/zero && tail -c +441 "$smollm2"; } >"$work/zeros.gguf"
    refuses damaged_model 3 "damaged" run -m "$work/zeros.gguf" -p hello
    refuses layer_beyond_the_last 1 "no layer 30; layers: 0 to 29" run -m "$smollm2" -p hello --kv-layer 30=q8_0
    refuses layer_beyond_the_last_of_plan 1 "no layer 30; layers: 0 to 29" plan -m "$smollm2" --kv-layer 30=q8_0
    refuses prompt_file_missing 2 "'$work/nope'" run -m "$smollm2" -f "$work/nope"
    refuses prompt_file_directory 2 "directory" run -m "$smollm2" -f "$work"
    refuses prompt_empty 1 "prompt is empty" run -m "$smollm2" -p ""
    : >"$work/empty.txt"
    refuses prompt_file_empty 1 "prompt is empty" run -m "$smollm2" -f "$work/empty.txt"
    printf 'a\0b' >"$work/zero.txt"
    refuses prompt_file_not_text 3 "byte 1 is zero" run -m "$smollm2" -f "$work/zero.txt"
    refuses template_unknown 1 "'nosuch'.*chatml" run -m "$smollm2" -p hello --chat-template nosuch
else
    skip models
fi
finish
