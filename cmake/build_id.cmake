# SPDX-License-Identifier: MIT
# Writes OUT, a header with KVFOLD_BUILD_ID: the commit of the working tree SOURCE, or VERSION where there is no git.
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty OUTPUT_VARIABLE id OUTPUT_STRIP_TRAILING_WHITESPACE
                ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR id STREQUAL "" OR NOT EXISTS "${SOURCE}/.git")
    set(id "v${VERSION}")
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT "#define KVFOLD_BUILD_ID \"${id}\"\n") # touches the file only when it changes
