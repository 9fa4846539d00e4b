// SPDX-License-Identifier: MIT
// The headers and the library from C++.
#include <kvfold.h>
#include <kvfold_codec.h>

#include <cstdio>

int main()
{
    kvf_spec_info info{};
    char error[256] = "";
    if (kvf_spec_check("kivi4", KVF_K, 64, &info, error, sizeof error) != KVF_OK) {
        std::fprintf(stderr, "%s\n", error);
        return 1;
    }
    std::printf("%s: %.3f bits\n", info.canonical, info.bits_code);
    return info.bits_code > 4.0 && info.bits_code < 8.0 ? 0 : 1;
}
