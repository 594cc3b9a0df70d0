/* Parses the size in the first line of a chunk, for both compiled modules. */
#include <Python.h>

#define MAX_SIZE_DIGITS 7

static int digit_of(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads the digits from *at on and moves it past them. 0 without any; -1 for more than are sane, where
 * zeros before the others do not count. */
static Py_ssize_t chunk_size(const char *bytes, Py_ssize_t *at, Py_ssize_t stop) {
    Py_ssize_t size = 0;
    int digits = 0, digit;
    while (*at < stop && bytes[*at] == '0')
        ++*at;
    for (; *at < stop && (digit = digit_of(bytes[*at])) >= 0; ++*at) {
        size = size * 16 + digit;
        if (++digits > MAX_SIZE_DIGITS)
            return -1;
    }
    return size;
}
