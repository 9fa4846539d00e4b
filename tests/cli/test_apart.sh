#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# No command that writes a file replaces one that it reads, or one that it has just written, by whatever name.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

model=$work/model.gguf text=$work/text result=$work/r.json profile=$work/p.profile
"$KVFOLD_BIN/gen-model" --bytes llama-64 "$model" f32
ferries >"$text"
printf '# kvfold profile 1\nkv turbo3/turbo3\n' >"$profile"
succeeds result bench ops --head-dim 32 --codec none --samples 9 --pool 1 --json --save "$result"
succeeds calibration calibrate -m "$model" -f "$text" -t 1 -c 128 --chunks 1 -o "$work/c.gguf"
cp "$text" "$work/more"
cp "$result" "$work/second.json"
printf 'uni4/uni4\n@%s\n' "$profile" >"$work/arms"
ln -s . "$work/here"

# apart NAME FILE OPTION ARGS...: OPTION FILE is refused, by its own name and through a folder's other name, and FILE stays as it is.
apart() {
    local name=$1 file=$2
    cp "$file" "$work/before"
    refuses "$name" 1 "are the same file" "${@:4}" "$3" "$file"
    refuses "${name}_linked" 1 "are the same file" "${@:4}" "$3" "$work/here/$(basename "$file")"
    holds "${name}_stays" cmp "$file" "$work/before"
}
given=(-t 1 -m "$model" --calibration "$work/c.gguf")
for input in "$model" "$work/c.gguf"; do
    role=$(basename "$input" .gguf)
    apart "quality_$role" "$input" --save quality "${given[@]}" -f "$text" -c 128
    apart "needle_$role" "$input" --save needle "${given[@]}"
    apart "e2e_$role" "$input" --save bench e2e "${given[@]}"
    apart "tune_$role" "$input" --save tune "${given[@]}" -f "$text" --bits 3
    apart "tune_write_$role" "$input" --write tune "${given[@]}" -f "$text" --bits 3
done
for input in "$text" "$work/more"; do
    role=$(basename "$input")
    apart "quality_$role" "$input" --save quality "${given[@]}" -f "$text" -f "$work/more" -c 128
    apart "tune_$role" "$input" --save tune "${given[@]}" -f "$text" -f "$work/more" --bits 3
    apart "tune_write_$role" "$input" --write tune "${given[@]}" -f "$text" -f "$work/more" --bits 3
    apart "calibrate_$role" "$input" -o calibrate -m "$model" -f "$text" -f "$work/more"
done
apart e2e_text "$text" --save bench e2e "${given[@]}" -f "$text"
apart quality_arms "$work/arms" --save quality "${given[@]}" -f "$text" -c 128 --arms "$work/arms"
apart quality_arm_profile "$profile" --save quality "${given[@]}" -f "$text" -c 128 --arms "$work/arms"
apart quality_profile "$profile" --save quality "${given[@]}" -f "$text" -c 128 --kv f16/f16 --profile "$profile"
apart needle_arm "$profile" --save needle "${given[@]}" --kv "uni4/uni4,@$profile"
apart e2e_arm "$profile" --save bench e2e "${given[@]}" --kv "uni4/uni4,@$profile"
apart tune_measured "$result" --save tune "${given[@]}" -f "$text" --bits 3 --measured "$result"
apart compare_first "$result" --save bench compare "$result" "$work/second.json"
apart compare_second "$work/second.json" --save bench compare "$result" "$work/second.json"
apart report_markdown "$work/second.json" --markdown report "$result" "$work/second.json" -o "$work/page"
apart widen "$model" -o widen -m "$model"
mkdir "$work/pages"
cp "$result" "$work/pages/report.html"
refuses report_page 1 "are the same file" report "$work/pages/report.html" -o "$work/pages"
holds report_page_stays cmp "$result" "$work/pages/report.html"

# Two outputs, of which neither is there yet.
refuses tune_both 1 "are the same file" tune "${given[@]}" -f "$text" --bits 3 --write "$work/new" --save "$work/here/new"
refuses report_both 1 "are the same file" report "$result" -o "$work/pages" --markdown "$work/pages/report.html"
holds wrote_nothing test ! -e "$work/new"
finish
