#include "bench.h"
int bench_ops(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return 1;
}
int bench_e2e(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return 1;
}
int bench_compare(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return 1;
}
