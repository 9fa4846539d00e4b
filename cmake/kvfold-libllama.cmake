# SPDX-License-Identifier: MIT
# Finds the shared libraries llama, ggml and ggml-base and makes the target kvfold::libllama of just those three (ggml loads or
# links its backends itself). Looked for, in this order:
#   KVFOLD_LLAMA_DIR      a prefix; when set, nothing else is tried
#   the CMake package     llama, wherever find_package looks (CMAKE_PREFIX_PATH, llama_DIR, the system)
#   pkg-config            llama.pc (PKG_CONFIG_PATH)
#   KVFOLD_LLAMA_PINNED   a prefix, complete when it holds a file `pin`
# The first that compiles and links the probe, a use of every newer name that the adapter needs, is taken.
#
# Sets KVFOLD_LLAMA_WHERE (what was found) and KVFOLD_LLAMA_IS_PINNED, or KVFOLD_LLAMA_REASON (what was tried, and why not).
if(TARGET kvfold::libllama)
    return()
endif()

set(_kvfold_probe "${CMAKE_CURRENT_LIST_DIR}/llama_probe.c")
set(_kvfold_reasons "")

# _kvfold_try_llama(label FROM include-folders IN library-folders)
function(_kvfold_try_llama label)
    if(TARGET kvfold::libllama)
        return()
    endif()
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FROM;IN")
    set(files "")
    foreach(name llama ggml ggml-base)
        find_library(file NAMES ${name} PATHS ${arg_IN} NO_DEFAULT_PATH NO_CACHE)
        if(NOT file) # ggml may be a package of its own
            find_library(file NAMES ${name} HINTS ${GGML_LIB_DIR} NO_CACHE)
        endif()
        if(NOT file OR NOT file MATCHES "\\${CMAKE_SHARED_LIBRARY_SUFFIX}")
            set(_kvfold_reasons "${_kvfold_reasons}\n  ${label}: no shared library ${name}" PARENT_SCOPE)
            return()
        endif()
        list(APPEND files "${file}")
        unset(file)
    endforeach()
    find_path(headers llama.h PATHS ${arg_FROM} NO_DEFAULT_PATH NO_CACHE)
    if(NOT headers)
        set(_kvfold_reasons "${_kvfold_reasons}\n  ${label}: no header llama.h" PARENT_SCOPE)
        return()
    endif()
    get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
    if(C IN_LIST languages)
        try_compile(_kvfold_fits "${CMAKE_BINARY_DIR}/llama-probe" SOURCES "${_kvfold_probe}" LINK_LIBRARIES ${files}
                    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${headers};${GGML_INCLUDE_DIR}" OUTPUT_VARIABLE output)
        set(fits ${_kvfold_fits})
        unset(_kvfold_fits CACHE) # the next candidate is another library
        if(NOT fits)
            string(REGEX MATCH "[^\n]*(error:|undefined reference)[^\n]*" first "${output}")
            string(REPLACE "${_kvfold_probe}:" "" first "${first}")
            set(_kvfold_reasons "${_kvfold_reasons}\n  ${label}: too old or too new for this adapter: ${first}" PARENT_SCOPE)
            return()
        endif()
    endif()

    add_library(kvfold::libllama INTERFACE IMPORTED GLOBAL)
    set(include_dirs "${headers}" ${GGML_INCLUDE_DIR})
    list(REMOVE_DUPLICATES include_dirs)
    set_target_properties(kvfold::libllama PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${include_dirs}"
                          INTERFACE_LINK_LIBRARIES "${files}")
    list(GET files 0 file)
    set(KVFOLD_LLAMA_WHERE "${label} (${file})" PARENT_SCOPE)
endfunction()

set(KVFOLD_LLAMA_IS_PINNED OFF)
if(KVFOLD_LLAMA_DIR)
    _kvfold_try_llama("${KVFOLD_LLAMA_DIR}" FROM "${KVFOLD_LLAMA_DIR}/include"
                      IN "${KVFOLD_LLAMA_DIR}/lib" "${KVFOLD_LLAMA_DIR}/lib64"
                         "${KVFOLD_LLAMA_DIR}/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
else()
    if(NOT LLAMA_LIB_DIR) # some versions of that package cannot be found twice
        find_package(llama CONFIG QUIET)
    endif()
    if(LLAMA_LIB_DIR)
        _kvfold_try_llama("CMake package llama" FROM "${LLAMA_INCLUDE_DIR}" IN "${LLAMA_LIB_DIR}")
    endif()
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND AND NOT TARGET kvfold::libllama)
        pkg_check_modules(KVFOLD_PC_LLAMA QUIET llama)
        if(KVFOLD_PC_LLAMA_FOUND)
            _kvfold_try_llama("pkg-config llama" FROM "${KVFOLD_PC_LLAMA_INCLUDEDIR}" IN "${KVFOLD_PC_LLAMA_LIBDIR}")
        endif()
    endif()
    if(KVFOLD_LLAMA_PINNED AND EXISTS "${KVFOLD_LLAMA_PINNED}/pin" AND NOT TARGET kvfold::libllama)
        _kvfold_try_llama("pinned release" FROM "${KVFOLD_LLAMA_PINNED}/include" IN "${KVFOLD_LLAMA_PINNED}/lib")
        if(TARGET kvfold::libllama)
            set(KVFOLD_LLAMA_IS_PINNED ON)
        endif()
    endif()
endif()

if(_kvfold_reasons)
    set(KVFOLD_LLAMA_REASON "no usable libllama:${_kvfold_reasons}")
else()
    set(KVFOLD_LLAMA_REASON "no libllama found (neither a CMake package nor a pkg-config file of that name).")
endif()
