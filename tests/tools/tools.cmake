# SPDX-License-Identifier: MIT
# Programs that make test models, and one that times policies. A file with main is a program, in build/bin; the others they share, and so
# do the host tests.
file(GLOB tools CONFIGURE_DEPENDS tools/*.c)
set(common "")
set(programs "")
foreach(source IN LISTS tools)
    file(STRINGS "${source}" main REGEX "^int main\\(")
    if(main)
        list(APPEND programs "${source}")
    else()
        list(APPEND common "${source}")
    endif()
endforeach()

add_library(tools_common STATIC ${common} "${PROJECT_SOURCE_DIR}/cli/gguf_out.c"
            "${PROJECT_SOURCE_DIR}/cli/whole_file.c")
target_include_directories(tools_common PUBLIC tools PRIVATE "${PROJECT_SOURCE_DIR}/cli")
target_link_libraries(tools_common PUBLIC kvfold::libllama m)
foreach(source IN LISTS programs)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(${name} "${source}")
    target_link_libraries(${name} PRIVATE tools_common)
    target_link_options(${name} PRIVATE ${rpath_options})
endforeach()
target_link_libraries(time-policies PRIVATE kvfold_static m)
if(OpenMP_C_FOUND)
    target_link_libraries(time-policies PRIVATE OpenMP::OpenMP_C)
endif()

if(NOT TARGET kvfold_cli)
    return()
endif()

# Widened copies of the real models, made once: two runs on them differ by their KV cache alone. 2.2 GB, so not part of `all`, and made
# again only when the way to make them changes, not whenever the program does.
set(wide "")
foreach(model smollm2-135m-instruct-q4_1 gemma-3-270m-q4_k_m)
    string(REGEX REPLACE "-q4_.*" "-f32.gguf" file "${model}")
    list(APPEND wide "${data}/models/${file}")
    add_custom_command(OUTPUT "${data}/models/${file}" VERBATIM
        COMMAND $<TARGET_FILE:kvfold_cli> widen -m "${data}/models/${model}.gguf" -o "${data}/models/${file}" --type f32
        DEPENDS "${PROJECT_SOURCE_DIR}/cli/widen.c" "${PROJECT_SOURCE_DIR}/cli/gguf_out.c" "${PROJECT_SOURCE_DIR}/cli/whole_file.c" "${data}/models/${model}.gguf"
        COMMENT "Widening ${model}.gguf")
endforeach()
list(APPEND wide "${data}/models/key-bias-135m-f32.gguf")
add_custom_command(OUTPUT "${data}/models/key-bias-135m-f32.gguf" VERBATIM
    COMMAND bias-keys "${data}/models/smollm2-135m-instruct-f32.gguf" "${data}/models/key-bias-135m-f32.gguf" 60 8
    DEPENDS bias-keys "${data}/models/smollm2-135m-instruct-f32.gguf" COMMENT "Adding a constant to the keys of a copy")
add_custom_target(models_f32 DEPENDS ${wide})
add_dependencies(models_f32 kvfold_cli)
