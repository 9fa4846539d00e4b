/* SPDX-License-Identifier: MIT */
#include "npz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- inflate ---- */

typedef struct bits {
    const unsigned char *at, *end;
    unsigned hold;
    int n, bad;
} bits;

static unsigned take(bits *b, int n)
{
    while (b->n < n) {
        if (b->at == b->end) {
            b->bad = 1;
            return 0;
        }
        b->hold |= (unsigned)*b->at++ << b->n;
        b->n += 8;
    }
    unsigned value = b->hold & ((1u << n) - 1);
    b->hold >>= n;
    b->n -= n;
    return value;
}

/* A canonical Huffman code: how many codes have each length, and the symbols in the order of their codes. */
typedef struct huffman {
    int count[16], symbol[288];
} huffman;

static void build(huffman *h, const unsigned char *length, int n)
{
    int first[16] = {0};
    memset(h, 0, sizeof *h);
    for (int i = 0; i < n; i++) h->count[length[i]]++;
    h->count[0] = 0;
    for (int l = 1; l < 15; l++) first[l + 1] = first[l] + h->count[l];
    for (int i = 0; i < n; i++)
        if (length[i]) h->symbol[first[length[i]]++] = i;
}

static int decode(bits *b, const huffman *h)
{
    int code = 0, first = 0, index = 0;
    for (int l = 1; l < 16 && !b->bad; l++) {
        code |= (int)take(b, 1);
        if (code - first < h->count[l]) return h->symbol[index + code - first];
        index += h->count[l];
        first = (first + h->count[l]) << 1;
        code <<= 1;
    }
    b->bad = 1;
    return 0;
}

typedef struct output {
    unsigned char *data;
    size_t at, size;
} output;

static void copy_back(bits *b, output *o, size_t distance, size_t length)
{
    if (distance > o->at || length > o->size - o->at) {
        b->bad = 1;
        return;
    }
    for (; length; length--, o->at++) o->data[o->at] = o->data[o->at - distance];
}

static void coded_block(bits *b, output *o, const huffman *literals, const huffman *distances)
{
    while (!b->bad) {
        int s = decode(b, literals);
        if (b->bad || s == 256) return;
        if (s < 256) {
            if (o->at == o->size)
                b->bad = 1;
            else
                o->data[o->at++] = (unsigned char)s;
            continue;
        }
        /* lengths 3.., four symbols for each number of extra bits from 265 on; 285 is 258. Distances likewise, two at a time */
        int i = s - 257, extra = i < 8 || i == 28 ? 0 : (i - 4) / 4;
        size_t length = i == 28 ? 258 : i < 8 ? (size_t)i + 3 : ((size_t)(4 + i % 4) << extra) + 3;
        length += take(b, extra);
        int d = decode(b, distances), more = d < 4 ? 0 : (d - 2) / 2;
        size_t distance = d < 4 ? (size_t)d + 1 : ((size_t)(2 + d % 2) << more) + 1;
        distance += take(b, more);
        if (i > 28 || d > 29)
            b->bad = 1;
        else
            copy_back(b, o, distance, length);
    }
}

static void stored_block(bits *b, output *o)
{
    b->hold = 0;
    b->n = 0;
    if (b->end - b->at < 4) {
        b->bad = 1;
        return;
    }
    size_t n = (size_t)b->at[0] | (size_t)b->at[1] << 8;
    b->at += 4;
    if ((size_t)(b->end - b->at) < n || o->size - o->at < n) {
        b->bad = 1;
        return;
    }
    memcpy(o->data + o->at, b->at, n);
    b->at += n;
    o->at += n;
}

static void dynamic_block(bits *b, output *o)
{
    static const unsigned char order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    unsigned char length[320] = {0}, small[19] = {0};
    huffman lengths, literals, distances;
    int n_literals = (int)take(b, 5) + 257, n_distances = (int)take(b, 5) + 1, n_small = (int)take(b, 4) + 4;
    for (int i = 0; i < n_small; i++) small[order[i]] = (unsigned char)take(b, 3);
    build(&lengths, small, 19);
    for (int i = 0, n = n_literals + n_distances; i < n && !b->bad;) {
        int s = decode(b, &lengths), times = 1;
        unsigned char value = (unsigned char)s;
        if (s == 16)
            value = i ? length[i - 1] : 0, times = (int)take(b, 2) + 3;
        else if (s == 17)
            value = 0, times = (int)take(b, 3) + 3;
        else if (s == 18)
            value = 0, times = (int)take(b, 7) + 11;
        if (i + times > n) b->bad = 1;
        while (!b->bad && times--) length[i++] = value;
    }
    if (b->bad || n_literals > 286) {
        b->bad = 1;
        return;
    }
    build(&literals, length, n_literals);
    build(&distances, length + n_literals, n_distances);
    coded_block(b, o, &literals, &distances);
}

static void fixed_block(bits *b, output *o)
{
    unsigned char length[288], five[30];
    huffman literals, distances;
    for (int i = 0; i < 288; i++) length[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    memset(five, 5, sizeof five);
    build(&literals, length, 288);
    build(&distances, five, 30);
    coded_block(b, o, &literals, &distances);
}

int npz_inflate(const unsigned char *from, size_t from_size, unsigned char *to, size_t size)
{
    bits b = {.at = from, .end = from + from_size};
    output o = {to, 0, size};
    for (unsigned last = 0; !last && !b.bad;) {
        last = take(&b, 1);
        switch (take(&b, 2)) {
        case 0: stored_block(&b, &o); break;
        case 1: fixed_block(&b, &o); break;
        case 2: dynamic_block(&b, &o); break;
        default: b.bad = 1;
        }
    }
    return !b.bad && o.at == o.size;
}

/* ---- archive ---- */

enum { NAME_MAX_ = 64, MEMBERS_MAX = 1024 };

typedef struct member {
    char name[NAME_MAX_];
    const unsigned char *data;
    size_t packed, size;
    int deflated;
} member;

struct npz {
    unsigned char *bytes;
    size_t size;
    int n;
    member members[MEMBERS_MAX];
};

static size_t get(const unsigned char *p, int n)
{
    size_t v = 0;
    while (n--) v = v << 8 | p[n];
    return v;
}

static unsigned char *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    unsigned char *bytes = NULL;
    long n = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    if (n > 0 && !fseek(f, 0, SEEK_SET)) bytes = malloc((size_t)n);
    if (bytes && fread(bytes, 1, (size_t)n, f) != (size_t)n) {
        free(bytes);
        bytes = NULL;
    }
    *size = n > 0 ? (size_t)n : 0;
    fclose(f);
    return bytes;
}

/* The entry of the central directory at `at`; 0 when it leads outside the file. */
static int read_member(npz *z, size_t at, size_t *next)
{
    const unsigned char *p = z->bytes + at;
    if (z->n == MEMBERS_MAX || z->size - at < 46 || get(p, 4) != 0x02014b50) return 0;
    size_t name = get(p + 28, 2), local = get(p + 42, 4);
    *next = at + 46 + name + get(p + 30, 2) + get(p + 32, 2);
    member *m = &z->members[z->n];
    m->deflated = get(p + 10, 2) == 8;
    m->packed = get(p + 20, 4);
    m->size = get(p + 24, 4);
    if (*next > z->size || name < 5 || name >= NAME_MAX_ || local > z->size - 30) return 0;
    memcpy(m->name, p + 46, name - 4); /* without ".npy" */
    size_t start = local + 30 + get(z->bytes + local + 26, 2) + get(z->bytes + local + 28, 2);
    if (start > z->size || m->packed > z->size - start || (!m->deflated && m->packed != m->size)) return 0;
    m->data = z->bytes + start;
    z->n++;
    return 1;
}

npz *npz_open(const char *path)
{
    npz *z = calloc(1, sizeof *z);
    size_t end;
    if (!z) return NULL;
    z->bytes = read_file(path, &z->size);
    if (!z->bytes || z->size < 22) {
        npz_close(z);
        return NULL;
    }
    for (end = z->size - 22; end && get(z->bytes + end, 4) != 0x06054b50;) end--;
    size_t count = get(z->bytes + end + 10, 2), at = get(z->bytes + end + 16, 4);
    while (end && count && at < z->size && read_member(z, at, &at)) count--;
    if (!end || count) {
        npz_close(z);
        return NULL;
    }
    return z;
}

void npz_close(npz *z)
{
    if (z) free(z->bytes);
    free(z);
}

const char *npz_name(const npz *z, int i)
{
    return i >= 0 && i < z->n ? z->members[i].name : NULL;
}

/* ---- arrays ---- */

static int read_header(const char *text, npz_array *a, int *column_major)
{
    const char *type = strstr(text, "'descr': '"), *order = strstr(text, "'fortran_order': "),
               *shape = strstr(text, "'shape': (");
    if (!type || !order || !shape || type[10] == '>') return 0;
    size_t n = strcspn(type + 11, "'");
    if (n >= sizeof a->type) return 0;
    memcpy(a->type, type + 11, n);
    a->type[n] = '\0';
    a->element = (size_t)atoi(a->type + 1);
    *column_major = order[17] == 'T';
    a->count = 1;
    for (shape += 10; *shape && *shape != ')';) {
        if (a->n_dims == NPZ_DIMS) return 0;
        char *rest;
        a->shape[a->n_dims] = strtoll(shape, &rest, 10);
        a->count *= a->shape[a->n_dims++];
        shape = rest + strspn(rest, ", ");
        if (rest == shape && *rest != ')') return 0;
    }
    return a->element > 0 && a->count >= 0;
}

/* Where element i of row-major order lies in column-major order. */
static int64_t column_index(const npz_array *a, int64_t i)
{
    int64_t at[NPZ_DIMS] = {0}, index = 0;
    for (int d = a->n_dims - 1; d >= 0; d--) {
        at[d] = i % a->shape[d];
        i /= a->shape[d];
    }
    for (int d = a->n_dims - 1; d >= 0; d--) index = index * a->shape[d] + at[d];
    return index;
}

static int read_array(const unsigned char *file, size_t size, npz_array *a)
{
    char text[512] = "";
    int column_major = 0;
    if (size < 10 || memcmp(file, "\x93NUMPY\x01", 7)) return 0;
    size_t n = get(file + 8, 2);
    if (n >= sizeof text || n + 10 > size) return 0;
    memcpy(text, file + 10, n);
    if (!read_header(text, a, &column_major) || (size_t)a->count * a->element != size - 10 - n) return 0;
    a->data = malloc((size_t)a->count * a->element + 1);
    if (!a->data) return 0;
    for (int64_t i = 0; i < a->count; i++)
        memcpy(a->data + (size_t)i * a->element, file + 10 + n + (size_t)(column_major ? column_index(a, i) : i) * a->element,
               a->element);
    return 1;
}

int npz_get(const npz *z, const char *name, npz_array *a)
{
    memset(a, 0, sizeof *a);
    for (int i = 0; i < z->n; i++) {
        const member *m = &z->members[i];
        if (strcmp(m->name, name)) continue;
        unsigned char *file = malloc(m->size + 1);
        int good = file && (m->deflated ? npz_inflate(m->data, m->packed, file, m->size) : 1);
        if (good && !m->deflated) memcpy(file, m->data, m->size);
        good = good && read_array(file, m->size, a);
        free(file);
        return good;
    }
    return 0;
}

void npz_free(npz_array *a)
{
    free(a->data);
    a->data = NULL;
}

double npz_number(const npz_array *a, int64_t i)
{
    const unsigned char *p = a->data + (size_t)i * a->element;
    size_t raw = get(p, (int)a->element);
    int wide = (int)a->element * 8;
    if (a->type[0] == 'u') return (double)raw;
    if (a->type[0] == 'i') return (double)((int64_t)((uint64_t)raw << (64 - wide)) >> (64 - wide));
    if (wide == 64) {
        double x;
        memcpy(&x, &raw, sizeof x);
        return x;
    }
    if (wide == 32) {
        float x;
        uint32_t u = (uint32_t)raw;
        memcpy(&x, &u, sizeof x);
        return x;
    }
    int e = (int)(raw >> 10 & 31), f = (int)(raw & 1023);
    double m = e == 31 ? (f ? NAN : INFINITY) : e ? ldexp(1024 + f, e - 25) : ldexp(f, -24);
    return raw >> 15 & 1 ? -m : m;
}
