/* What `stamped_reads` does for every request and every read of a socket, compiled.
 *
 * What is meant is said there, and by the inference client, whose sources remain the reference: all
 * but the plain case is handed back to it. Built against the stable ABI, so that one library serves
 * every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "../../core/responses/_chunk_size.h"

#ifndef SCM_TIMESTAMPNS
#define SCM_TIMESTAMPNS 35
#endif
#define READ_SIZE 65536

/* Of the process, not of a call: whoever reads holds the interpreter's lock, and takes the bytes
 * out before letting go of it. */
static char arrived[READ_SIZE];

static long long chunked, fragment_bytes, first_parts, first_reads_bytes, max_response_bytes,
    idle_state, head_state, body_state, flag_final, flag_reused, completed, not_written;

typedef struct {
    Py_ssize_t size;
    int64_t stamp; /* 0: none */
    int64_t now;
} Read;

/* Of protocol.records: READ and FRAGMENT. */
typedef struct __attribute__((packed)) {
    int64_t stamp, polled, read;
    uint32_t length;
} Row;
typedef struct __attribute__((packed)) {
    uint64_t request_id, seq, index;
    int64_t due, start, sent, ack, end, connect, tls;
    uint32_t bytes_out, body_offset, reads, body, message, entry;
    int32_t input_tokens;
    uint16_t part, turn, status, flags;
    uint8_t phase, outcome, error, framing;
    int32_t requested_tokens;
} Fragment;

/* --- the fields of a connection --------------------------------------------------------------- */

#define INTEGERS(X) \
    X(ack) X(body_offset) X(bytes_in) X(bytes_out) X(connect_ns) X(due) X(entry) X(fd) X(flags) \
    X(framing) X(index) X(input_tokens) X(left) X(opened_mono_ns) X(part) X(phase) X(request_id) \
    X(requested_tokens) X(requests) X(sent) X(start) X(started_mono_ns) X(state) X(status) \
    X(tls_ns) X(turn)
#define OBJECTS(X) X(buffer) X(kept) X(line) X(payload) X(read_rows) X(session) X(tls) X(unsent)

typedef struct {
    PyObject_HEAD
#define INTEGER(name) long long name;
    INTEGERS(INTEGER)
#define OBJECT(name) PyObject *name;
    OBJECTS(OBJECT)
    char is_used, keep_alive;
} Fields;

static PyMemberDef members[] = {
#define INTEGER_MEMBER(name) {#name, T_LONGLONG, offsetof(Fields, name), 0, NULL},
    INTEGERS(INTEGER_MEMBER)
#define OBJECT_MEMBER(name) {#name, T_OBJECT, offsetof(Fields, name), 0, NULL},
    OBJECTS(OBJECT_MEMBER)
    {"is_used", T_BOOL, offsetof(Fields, is_used), 0, NULL},
    {"keep_alive", T_BOOL, offsetof(Fields, keep_alive), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* None of its objects ever leads back to a connection, so the collector need not know of them. */
static void free_fields(PyObject *self) {
    Fields *fields = (Fields *)self;
#define RELEASE(name) Py_XDECREF(fields->name);
    OBJECTS(RELEASE)
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {{Py_tp_members, members}, {Py_tp_dealloc, free_fields}, {0, NULL}};
static PyType_Spec spec = {
    "aiperf_svc.adapters.inference._stamped_reads.Fields", sizeof(Fields), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
static PyTypeObject *fields_type;

/* NULL with an exception set when it is none. */
static Fields *fields_of(PyObject *connection) {
    if (PyObject_TypeCheck(connection, fields_type))
        return (Fields *)connection;
    PyErr_SetString(PyExc_TypeError, "not a connection");
    return NULL;
}

static int is_none(const PyObject *object) {
    return object == NULL || object == Py_None;
}

static void set_object(PyObject **field, PyObject *value) {
    PyObject *before = *field;
    Py_INCREF(value);
    *field = value;
    Py_XDECREF(before);
}

static int has_arguments(Py_ssize_t count, Py_ssize_t expected) {
    if (count != expected)
        PyErr_Format(PyExc_TypeError, "%zd arguments, not %zd", expected, count);
    return count == expected;
}

/* --- writing ---------------------------------------------------------------------------------- */

static int64_t nanoseconds(const struct timespec *time) {
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static int64_t now_of(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return nanoseconds(&time);
}

static PyObject *write_payload(Fields *fields) {
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(fields->payload, &bytes, &size) < 0)
        return NULL;
    fields->state = head_state;
    fields->requests++;
    if (fields->is_used)
        fields->flags |= flag_reused;
    fields->status = fields->ack = fields->body_offset = 0;
    fields->started_mono_ns = now_of(CLOCK_MONOTONIC);
    fields->start = now_of(CLOCK_REALTIME);
    ssize_t sent;
    do {
        sent = send((int)fields->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return PyErr_SetFromErrno(PyExc_OSError);
        sent = 0;
    }
    fields->sent = now_of(CLOCK_REALTIME);
    return PyLong_FromSsize_t(size - sent);
}

static PyObject *write_request(PyObject *module, PyObject *connection) {
    Fields *fields = fields_of(connection);
    return fields == NULL ? NULL : write_payload(fields);
}

/* Three parts with a number in decimal before the last. */
static PyObject *joined(PyObject *const *parts, PyObject *number) {
    char *bytes[3], digits[24];
    Py_ssize_t sizes[3];
    for (int i = 0; i < 3; i++)
        if (PyBytes_AsStringAndSize(parts[i], &bytes[i], &sizes[i]) < 0)
            return NULL;
    long long value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    int digit_count = snprintf(digits, sizeof digits, "%lld", value);
    PyObject *whole = PyBytes_FromStringAndSize(NULL, sizes[0] + sizes[1] + digit_count + sizes[2]);
    if (whole == NULL)
        return NULL;
    char *at = PyBytes_AsString(whole);
    memcpy(at, bytes[0], sizes[0]);
    memcpy(at += sizes[0], bytes[1], sizes[1]);
    memcpy(at += sizes[1], digits, digit_count);
    memcpy(at + digit_count, bytes[2], sizes[2]);
    return whole;
}

static PyObject *begin(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Fields *fields;
    if (!has_arguments(count, 15) || (fields = fields_of(arguments[0])) == NULL)
        return NULL;
    PyObject *const parts[] = {arguments[1], arguments[2], arguments[4]};
    PyObject *payload = joined(parts, arguments[3]);
    if (payload == NULL)
        return NULL;
    set_object(&fields->payload, payload);
    Py_DECREF(payload);
    fields->bytes_out = PyBytes_Size(payload);
    fields->request_id = PyLong_AsLongLong(arguments[5]);
    fields->phase = PyLong_AsLongLong(arguments[6]);
    fields->index = PyLong_AsLongLong(arguments[7]);
    fields->entry = PyLong_AsLongLong(arguments[8]);
    fields->turn = PyLong_AsLongLong(arguments[9]);
    fields->due = PyLong_AsLongLong(arguments[10]);
    fields->flags = PyLong_AsLongLong(arguments[11]);
    fields->input_tokens = PyLong_AsLongLong(arguments[12]);
    fields->requested_tokens = PyLong_AsLongLong(arguments[13]);
    set_object(&fields->session, arguments[14]);
    fields->start = fields->bytes_in = fields->part = 0;
    if (PyErr_Occurred())
        return NULL;
    if (fields->state != idle_state || !is_none(fields->tls))
        return PyLong_FromLongLong(not_written);
    return write_payload(fields);
}

/* --- reading ---------------------------------------------------------------------------------- */

/* 1: bytes have arrived; 0: there are none; -1: an exception is set. */
static int read_socket(const Fields *fields, Read *read) {
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {arrived, READ_SIZE};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    do {
        read->size = recvmsg((int)fields->fd, &message, MSG_DONTWAIT);
    } while (read->size < 0 && errno == EINTR);
    if (read->size < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    read->now = now_of(CLOCK_REALTIME);
    read->stamp = 0;
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (first != NULL && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_TIMESTAMPNS) {
        struct timespec time;
        memcpy(&time, CMSG_DATA(first), sizeof time);
        read->stamp = nanoseconds(&time);
    }
    return 1;
}

static PyObject *handed_back(const Read *read) {
    return Py_BuildValue(
        "(y#LL)", arrived, read->size, (long long)read->stamp, (long long)read->now);
}

/* --- gathering -------------------------------------------------------------------------------- */

static int add(PyObject *gathered, const void *bytes, Py_ssize_t size) {
    Py_ssize_t before = PyByteArray_Size(gathered);
    if (PyByteArray_Resize(gathered, before + size) < 0)
        return -1;
    memcpy(PyByteArray_AsString(gathered) + before, bytes, size);
    return 0;
}

static int add_to(PyObject *object, PyObject *name, const void *bytes, Py_ssize_t size) {
    PyObject *gathered = PyObject_GetAttr(object, name);
    int failed = gathered == NULL || add(gathered, bytes, size) < 0;
    Py_XDECREF(gathered);
    return failed ? -1 : 0;
}

static Row row_of(const Read *read, int64_t polled) {
    return (Row){read->stamp, polled, read->now, (uint32_t)read->size};
}

/* --- a whole response ------------------------------------------------------------------------- */

/* Of core.responses.layouts.Layout. */
typedef struct {
    int64_t status, framing, body_offset;
    const char *response;
    const char *spans;
    Py_ssize_t response_size, span_count;
} Layout;

/* Attributes of records. */
static PyObject *name_bodies, *name_fragments, *name_last_seq, *name_reads;

static int64_t item_of(PyObject *tuple, Py_ssize_t place) {
    PyObject *item = PyTuple_GetItem(tuple, place);
    return item == NULL ? -1 : PyLong_AsLongLong(item);
}

static const char *bytes_of(PyObject *tuple, Py_ssize_t place, Py_ssize_t *size) {
    PyObject *item = PyTuple_GetItem(tuple, place);
    char *bytes;
    return item == NULL || PyBytes_AsStringAndSize(item, &bytes, size) < 0 ? NULL : bytes;
}

/* The layout for responses of that size; NULL where there is none, or with an exception set. The
 * latest is kept: most responses have the one of the response before. */
static const Layout *find_layout(PyObject *layouts, Py_ssize_t size) {
    static PyObject *latest;
    static Layout layout;
    PyObject *key = PyLong_FromSsize_t(size);
    PyObject *found = key == NULL ? NULL : PyDict_GetItemWithError(layouts, key);
    Py_XDECREF(key);
    if (found == NULL)
        return NULL;
    if (found != latest) {
        Py_ssize_t spans_size = 0;
        Layout taken = {item_of(found, 2), item_of(found, 3), item_of(found, 4), NULL, NULL, 0, 0};
        taken.response = bytes_of(found, 5, &taken.response_size);
        taken.spans = bytes_of(found, 6, &spans_size);
        taken.span_count = spans_size / 8;
        if (PyErr_Occurred())
            return NULL;
        set_object(&latest, found);
        layout = taken;
    }
    return layout.response_size == size ? &layout : NULL;
}

static int is_laid_out(const Layout *layout) {
    for (Py_ssize_t i = 0; i < layout->span_count; i++) {
        uint32_t span[2];
        memcpy(span, layout->spans + 8 * i, 8);
        if (memcmp(arrived + span[0], layout->response + span[0], span[1] - span[0]))
            return 0;
    }
    return 1;
}

/* Whether the connection waits for the beginning of a response whose bytes nobody else needs. */
static int is_at_beginning(const Fields *fields) {
    return fields->state == head_state && is_none(fields->buffer) && is_none(fields->kept) &&
           is_none(fields->tls) && is_none(fields->unsent);
}

/* As Connection.become_idle. */
static void become_idle(Fields *fields) {
    set_object(&fields->payload, Py_None);
    fields->state = idle_state;
    if (!fields->is_used) {
        fields->is_used = 1;
        fields->connect_ns = fields->tls_ns = 0;
    }
}

/* What there is of a response. */
typedef struct {
    const void *body, *rows;
    Py_ssize_t body_size, rows_size;
} Part;

/* As RawRecords._pack: of a response that goes on, then without a number, or the last of one that
 * completed. */
static int pack(Fields *fields, PyObject *records, const Part *part, int64_t seq, int64_t end) {
    Fragment fragment = {
        .request_id = (uint64_t)fields->request_id,
        .seq = (uint64_t)seq,
        .index = (uint64_t)fields->index,
        .due = fields->due,
        .start = fields->start,
        .sent = fields->sent,
        .ack = fields->ack,
        .end = end,
        .connect = fields->connect_ns,
        .tls = fields->tls_ns,
        .bytes_out = (uint32_t)fields->bytes_out,
        .body_offset = (uint32_t)fields->body_offset,
        .reads = (uint32_t)(part->rows_size / (Py_ssize_t)sizeof(Row)),
        .body = (uint32_t)part->body_size,
        .entry = (uint32_t)fields->entry,
        .input_tokens = (int32_t)fields->input_tokens,
        .part = (uint16_t)fields->part,
        .turn = (uint16_t)fields->turn,
        .status = (uint16_t)fields->status,
        .flags = (uint16_t)(seq ? fields->flags | flag_final : fields->flags),
        .phase = (uint8_t)fields->phase,
        .outcome = (uint8_t)(seq ? completed : 0),
        .framing = (uint8_t)fields->framing,
        .requested_tokens = (int32_t)fields->requested_tokens,
    };
    if (add_to(records, name_fragments, &fragment, sizeof fragment) < 0 ||
        add_to(records, name_reads, part->rows, part->rows_size) < 0 ||
        add_to(records, name_bodies, part->body, part->body_size) < 0)
        return -1;
    fields->part++;
    return 0;
}

/* As RawRecords.end, for a response that completed; None, or NULL with an exception set. */
static PyObject *record(Fields *fields, PyObject *records, const Part *last, int64_t end) {
    PyObject *number = PyObject_GetAttr(records, name_last_seq);
    int64_t seq = number == NULL ? 0 : PyLong_AsLongLong(number) + 1;
    Py_XDECREF(number);
    PyObject *next = PyErr_Occurred() ? NULL : PyLong_FromLongLong(seq);
    if (next == NULL)
        return NULL;
    int failed = PyObject_SetAttr(records, name_last_seq, next) < 0;
    Py_DECREF(next);
    if (failed || pack(fields, records, last, seq, end) < 0)
        return NULL;
    fields->ack = end;
    become_idle(fields);
    Py_RETURN_NONE;
}

static PyObject *record_whole(Fields *fields, PyObject *records, const Layout *layout,
                              const Read *read, int64_t polled) {
    Row row = row_of(read, polled);
    const Part whole = {arrived, &row, read->size, sizeof row};
    fields->ack = read->stamp;
    fields->status = layout->status;
    fields->framing = layout->framing;
    fields->body_offset = layout->body_offset;
    return record(fields, records, &whole, read->stamp);
}

/* --- in the middle of responses --------------------------------------------------------------- */

/* Offset after the whole chunks from `at` on, beyond `size` when the last goes on in a later read.
 * It stops at a line that is not that plain: the last one, a cut one, or one with
 * more than a size. */
static Py_ssize_t after_chunks(const char *bytes, Py_ssize_t at, Py_ssize_t size) {
    while (at < size) {
        Py_ssize_t line = at, chunk = chunk_size(bytes, &line, size);
        if (chunk <= 0 || line + 2 > size || bytes[line] != '\r' || bytes[line + 1] != '\n')
            break;
        at = line + 2 + chunk + 2;
    }
    return at;
}

static PyObject *pass_chunks(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    char *bytes;
    Py_ssize_t size;
    if (!has_arguments(count, 2) || PyBytes_AsStringAndSize(arguments[0], &bytes, &size) < 0)
        return NULL;
    Py_ssize_t at = PyLong_AsSsize_t(arguments[1]);
    if (at < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "outside of the data");
        return NULL;
    }
    return PyLong_FromSsize_t(after_chunks(bytes, at, size));
}

/* Whether the connection waits for more of a chunk, or for the line of the next one, in a body
 * whose bytes nobody else needs. Until a head is whole all that is known of the framing is of the
 * response before. */
static int is_plain(const Fields *fields) {
    return fields->state == body_state && fields->framing == chunked && fields->left >= 0 &&
           is_none(fields->kept) && is_none(fields->tls) && fields->line != NULL &&
           PyBytes_Check(fields->line) && PyBytes_Size(fields->line) == 0;
}

static int64_t part_bytes(const Fields *fields) {
    return fields->part ? fragment_bytes
                        : fragment_bytes / first_parts * (1 + fields->request_id % first_parts);
}

/* Adds to a buffer that may not be there yet, or be the bytes of one read. */
static int gather(PyObject **buffer, const void *bytes, Py_ssize_t size) {
    if (is_none(*buffer) || !PyByteArray_Check(*buffer)) {
        PyObject *made = is_none(*buffer) ? PyByteArray_FromStringAndSize(NULL, 0)
                                          : PyByteArray_FromObject(*buffer);
        if (made == NULL)
            return -1;
        set_object(buffer, made);
        Py_DECREF(made);
    }
    return add(*buffer, bytes, size);
}

static int add_read(Fields *fields, const Read *read, int64_t polled) {
    Row row = row_of(read, polled);
    if (gather(&fields->buffer, arrived, read->size) < 0 ||
        gather(&fields->read_rows, &row, sizeof row) < 0)
        return -1;
    fields->bytes_in += read->size;
    return 0;
}

static Part gathered(const Fields *fields) {
    return (Part){
        PyByteArray_AsString(fields->buffer), PyByteArray_AsString(fields->read_rows),
        PyByteArray_Size(fields->buffer), PyByteArray_Size(fields->read_rows)};
}

static void forget_gathered(Fields *fields) {
    set_object(&fields->buffer, Py_None);
    set_object(&fields->read_rows, Py_None);
}

/* The read goes on with a response: True when that has come to its middle. */
static PyObject *take_more(Fields *fields, PyObject *records, const Read *read, int64_t polled) {
    if (add_read(fields, read, polled) < 0)
        return NULL;
    int is_in_the_middle = PyByteArray_Size(fields->read_rows) == first_reads_bytes;
    if (PyByteArray_Size(fields->buffer) >= part_bytes(fields)) {
        const Part part = gathered(fields);
        if (pack(fields, records, &part, 0, 0) < 0)
            return NULL;
        forget_gathered(fields);
    }
    return PyBool_FromLong(is_in_the_middle);
}

/* Whether a good response on a connection that stays open ends at `at` and nothing follows. */
static int is_end(const Fields *fields, Py_ssize_t at, Py_ssize_t size) {
    static const char last_chunk[] = "0\r\n\r\n";
    return size - at == sizeof last_chunk - 1 && !memcmp(arrived + at, last_chunk, size - at) &&
           fields->status < 400 && fields->keep_alive && is_none(fields->unsent);
}

/* The read ends a response. */
static PyObject *take_last(Fields *fields, PyObject *records, const Read *read, int64_t polled) {
    if (add_read(fields, read, polled) < 0)
        return NULL;
    const Part last = gathered(fields);
    PyObject *done = record(fields, records, &last, read->stamp);
    if (done != NULL)
        forget_gathered(fields);
    return done;
}

/* --- what is ready ---------------------------------------------------------------------------- */

typedef struct {
    PyObject *connections, *layouts, *records, *left;
    int64_t polled;
} Ready;

/* What is left to do for a connection, False for nothing; NULL with an exception set. */
static PyObject *take(Fields *fields, const Ready *ready) {
    Read read;
    int got = read_socket(fields, &read);
    if (got < 0)
        return NULL;
    if (got == 0)
        Py_RETURN_FALSE;
    if (read.size && read.stamp && is_at_beginning(fields)) {
        const Layout *layout = find_layout(ready->layouts, read.size);
        if (layout == NULL && PyErr_Occurred())
            return NULL;
        if (layout != NULL && is_laid_out(layout))
            return record_whole(fields, ready->records, layout, &read, ready->polled);
    } else if (read.size && read.stamp && is_plain(fields) &&
               fields->bytes_in + read.size <= max_response_bytes) {
        Py_ssize_t after = after_chunks(arrived, fields->left, read.size);
        if (after >= read.size) {
            fields->left = after - read.size;
            return take_more(fields, ready->records, &read, ready->polled);
        }
        if (is_end(fields, after, read.size))
            return take_last(fields, ready->records, &read, ready->polled);
    }
    return handed_back(&read);
}

/* As `take`; an error of the socket is also something left to do. */
static PyObject *taken_or_broken(Fields *fields, const Ready *ready) {
    PyObject *left = take(fields, ready);
    if (left == NULL && PyErr_ExceptionMatches(PyExc_OSError)) {
        PyObject *type, *traceback;
        PyErr_Fetch(&type, &left, &traceback);
        PyErr_NormalizeException(&type, &left, &traceback);
        Py_XDECREF(type);
        Py_XDECREF(traceback);
    }
    return left;
}

static int leave(const Ready *ready, PyObject *connection, PyObject *what) {
    PyObject *pair = PyTuple_Pack(2, connection, what);
    int failed = pair == NULL || PyList_Append(ready->left, pair) < 0;
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

/* Does what there is to do for one event; -1 with an exception set. */
static int take_event(PyObject *event, const Ready *ready) {
    PyObject *fd = PyTuple_GetItem(event, 0), *mask = PyTuple_GetItem(event, 1);
    PyObject *found = mask == NULL ? NULL : PyDict_GetItemWithError(ready->connections, fd);
    if (found == NULL)
        return PyErr_Occurred() ? -1 : leave(ready, Py_None, fd);
    if (PyLong_AsLong(mask) != EPOLLIN)
        return leave(ready, found, mask);
    Fields *fields = fields_of(found);
    PyObject *what = fields == NULL ? NULL : taken_or_broken(fields, ready);
    if (what == NULL)
        return -1;
    int failed = what == Py_False ? 0 : leave(ready, found, what);
    Py_DECREF(what);
    return failed;
}

static PyObject *take_ready(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    if (!has_arguments(count, 7))
        return NULL;
    PyObject *events = arguments[0];
    Py_ssize_t at = PyLong_AsSsize_t(arguments[1]), stop = PyLong_AsSsize_t(arguments[2]);
    Ready ready = {
        .connections = arguments[3],
        .layouts = arguments[5],
        .records = arguments[6],
        .polled = PyLong_AsLongLong(arguments[4]),
    };
    if (PyErr_Occurred() || (ready.left = PyList_New(0)) == NULL)
        return NULL;
    if (stop > PyList_Size(events))
        stop = PyList_Size(events);
    for (; at < stop; at++) {
        PyObject *event = PyList_GetItem(events, at);
        if (event == NULL || take_event(event, &ready) < 0) {
            Py_DECREF(ready.left);
            return NULL;
        }
    }
    return ready.left;
}

/* --- the module ------------------------------------------------------------------------------- */

static PyObject *set_constants(PyObject *module, PyObject *arguments) {
    long long fragment_size, row_size;
    if (!PyArg_ParseTuple(arguments, "LLLLLLLLLLLLLL", &chunked, &fragment_bytes, &first_parts,
                          &first_reads_bytes, &max_response_bytes, &idle_state, &head_state,
                          &body_state, &fragment_size, &row_size, &flag_final, &flag_reused,
                          &completed, &not_written))
        return NULL;
    if (fragment_size != sizeof(Fragment) || row_size != sizeof(Row)) {
        PyErr_SetString(PyExc_ImportError, "_stamped_reads was compiled for other rows: `make`");
        return NULL;
    }
    Py_RETURN_NONE;
}

#define FAST(function) {#function, (PyCFunction)(void (*)(void))function, METH_FASTCALL, NULL}
static PyMethodDef functions[] = {
    FAST(begin),
    FAST(pass_chunks),
    FAST(take_ready),
    {"write_request", write_request, METH_O, NULL},
    {"set_constants", set_constants, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_stamped_reads", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__stamped_reads(void) {
    if ((name_bodies = PyUnicode_InternFromString("bodies")) == NULL ||
        (name_fragments = PyUnicode_InternFromString("fragments")) == NULL ||
        (name_last_seq = PyUnicode_InternFromString("last_seq")) == NULL ||
        (name_reads = PyUnicode_InternFromString("reads")) == NULL ||
        (fields_type = (PyTypeObject *)PyType_FromSpec(&spec)) == NULL)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddType(module, fields_type) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
