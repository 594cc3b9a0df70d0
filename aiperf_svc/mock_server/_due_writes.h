/* Due writes, mostly of tokens, like `quick_serving.DueWrites`. */
#include <Python.h>

#include <stdint.h>
#include <string.h>
#include <time.h>

#include "_serving_state.h"

#define DUE_NAMES(X) X(_chunks) X(_limit) X(base) X(chunks_dropped) X(writes)
#define DECLARE(name) static PyObject *name_##name;
DUE_NAMES(DECLARE)

/* --- the heap --------------------------------------------------------------------------------- */

typedef struct {
    int64_t due_ns;
    int fd;
} Entry;

typedef struct {
    PyObject_HEAD
    PyObject *table, *rows;
    Tally *tally;
    int64_t itl_ns; /* negative: no write is the like of the next */
    Entry *heap;    /* the first is due first; of equal ones, the lower descriptor */
    Py_ssize_t count, room;
} DueWrites;

static int is_before(Entry a, Entry b) {
    return a.due_ns < b.due_ns || (a.due_ns == b.due_ns && a.fd < b.fd);
}

/* Replaces the first entry. */
static void replace_first(DueWrites *due, Entry entry) {
    Entry *heap = due->heap;
    Py_ssize_t at = 0, below;
    while ((below = 2 * at + 1) < due->count) {
        if (below + 1 < due->count && is_before(heap[below + 1], heap[below]))
            below++;
        if (!is_before(heap[below], entry))
            break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = entry;
}

static void remove_first(DueWrites *due) {
    due->count--;
    if (due->count)
        replace_first(due, due->heap[due->count]);
}

static PyObject *add(PyObject *self, PyObject *argument) {
    DueWrites *due = (DueWrites *)self;
    if (!PyObject_TypeCheck(argument, connection_type)) {
        PyErr_SetString(PyExc_TypeError, "only a connection has writes");
        return NULL;
    }
    if (due->count == due->room) {
        Py_ssize_t room = due->room ? 2 * due->room : 64;
        Entry *heap = PyMem_Realloc(due->heap, room * sizeof(Entry));
        if (heap == NULL)
            return PyErr_NoMemory();
        due->heap = heap;
        due->room = room;
    }
    Connection *connection = (Connection *)argument;
    Entry entry = {connection->due_ns, connection->fd};
    Py_ssize_t at = due->count++;
    while (at > 0 && is_before(entry, due->heap[(at - 1) / 2])) {
        due->heap[at] = due->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    due->heap[at] = entry;
    Py_RETURN_NONE;
}

static PyObject *first_ns(PyObject *self, PyObject *unused) {
    DueWrites *due = (DueWrites *)self;
    return PyLong_FromLongLong(due->count ? due->heap[0].due_ns : 0);
}

static PyObject *shift(PyObject *self, PyObject *argument) {
    DueWrites *due = (DueWrites *)self;
    long long by_ns = PyLong_AsLongLong(argument);
    if (PyErr_Occurred())
        return NULL;
    for (Py_ssize_t i = 0; i < due->count; i++)
        due->heap[i].due_ns += by_ns;
    Py_RETURN_NONE;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* The attributes in which Rows keeps the times of chunks, looked up once for many chunks. */
typedef struct {
    PyObject *chunks; /* NULL: no rows are kept */
    int64_t base, limit, dropped;
} Stamps;

static int64_t get_integer(PyObject *object, PyObject *name) {
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    int64_t number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return number;
}

static int find_stamps(PyObject *rows, Stamps *stamps) {
    *stamps = (Stamps){0};
    if (is_none(rows))
        return 0;
    stamps->base = get_integer(rows, name_base);
    stamps->limit = get_integer(rows, name__limit);
    stamps->chunks = PyErr_Occurred() ? NULL : PyObject_GetAttr(rows, name__chunks);
    return stamps->chunks == NULL ? -1 : 0;
}

/* Like Rows.sent for a chunk in the middle of a response. */
static int stamp_chunk(Stamps *stamps, int64_t number) {
    struct timespec time;
    int64_t chunk[2] = {number - stamps->base, 0};
    if (chunk[0] < 0)
        return 0;
    Py_ssize_t before = PyByteArray_Size(stamps->chunks);
    if (before >= stamps->limit * (int64_t)sizeof chunk) {
        stamps->dropped++;
        return 0;
    }
    if (PyByteArray_Resize(stamps->chunks, before + sizeof chunk) < 0)
        return -1;
    clock_gettime(CLOCK_REALTIME, &time);
    chunk[1] = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
    memcpy(PyByteArray_AsString(stamps->chunks) + before, chunk, sizeof chunk);
    return 0;
}

static int leave_stamps(PyObject *rows, Stamps *stamps) {
    Py_CLEAR(stamps->chunks);
    if (stamps->dropped == 0 || PyErr_Occurred())
        return 0;
    int64_t dropped = get_integer(rows, name_chunks_dropped) + stamps->dropped;
    PyObject *value = PyErr_Occurred() ? NULL : PyLong_FromLongLong(dropped);
    int failed = value == NULL ? -1 : PyObject_SetAttr(rows, name_chunks_dropped, value);
    Py_XDECREF(value);
    return failed;
}

/* --- tokens ----------------------------------------------------------------------------------- */

typedef enum { FAILED, SENT, HALTED, OTHER } Way;

/* Makes the next write of a connection if it is a token in a stream with a fixed pace.
 *
 * SENT: all of it is sent and accounted for. HALTED: the kernel accepted only `sent` bytes of it, or it is BROKEN.
 * OTHER: it is another kind of write. FAILED: an exception is set. */
static Way send_token(DueWrites *due, Connection *connection, Stamps *stamps, Py_ssize_t *sent) {
    if (due->itl_ns < 0 || is_none(connection->reply))
        return OTHER;
    PyObject *writes = PyObject_GetAttr(connection->reply, name_writes);
    if (writes == NULL)
        return FAILED;
    Py_ssize_t step = connection->step, size = 0;
    int is_last = step + 1 >= PyList_Size(writes);
    int has_head = step == 0 && stamps->chunks != NULL; /* of which a row tells more */
    Py_DECREF(writes); /* the reply has it */
    if (is_last || has_head)
        return OTHER;
    if (stamps->chunks != NULL && stamp_chunk(stamps, connection->row) < 0)
        return FAILED;
    connection->step = step + 1;
    *sent = send_bytes(connection->fd, PyList_GetItem(writes, step), &size);
    if (*sent != size)
        return PyErr_Occurred() ? FAILED : HALTED;
    due->tally->writes++;
    due->tally->bytes_out += size;
    return SENT;
}

static PyObject *next_write(PyObject *self, PyObject *arguments) {
    DueWrites *due = (DueWrites *)self;
    long long pass_ns;
    Py_ssize_t left, sent = 0;
    Stamps stamps;
    if (!PyArg_ParseTuple(arguments, "Ln", &pass_ns, &left))
        return NULL;
    if (find_stamps(due->rows, &stamps) < 0)
        return NULL;
    Connection *connection = NULL;
    Way way = SENT;
    while (way == SENT && left > 0 && due->count && due->heap[0].due_ns <= pass_ns) {
        Entry entry = due->heap[0];
        left--;
        connection = connection_at(due->table, entry.fd);
        if (connection == NULL || connection->due_ns != entry.due_ns) {
            remove_first(due); /* stale */
            continue;
        }
        way = send_token(due, connection, &stamps, &sent);
        if (way == SENT) {
            entry.due_ns += due->itl_ns;
            if (entry.due_ns <= pass_ns)
                entry.due_ns = pass_ns + 1;
            connection->due_ns = entry.due_ns;
            replace_first(due, entry);
        } else {
            remove_first(due);
        }
    }
    if (leave_stamps(due->rows, &stamps) < 0 || way == FAILED)
        return NULL;
    if (way == HALTED)
        return Py_BuildValue("(Onn)", connection, left, sent);
    if (way == OTHER)
        return Py_BuildValue("(OnO)", connection, left, Py_None);
    Py_RETURN_NONE;
}

static PyObject *make_due_writes(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *table, *tally, *rows;
    long long itl_ns;
    if (!PyArg_ParseTuple(arguments, "O!O!OL", &PyList_Type, &table, tally_type, &tally, &rows,
                          &itl_ns))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    DueWrites *due = (DueWrites *)allocate(type, 0);
    if (due == NULL)
        return NULL;
    due->table = Py_NewRef(table);
    due->tally = (Tally *)Py_NewRef(tally);
    due->rows = Py_NewRef(rows);
    due->itl_ns = itl_ns;
    return (PyObject *)due;
}

static void free_due_writes(PyObject *self) {
    DueWrites *due = (DueWrites *)self;
    Py_XDECREF(due->table);
    Py_XDECREF((PyObject *)due->tally);
    Py_XDECREF(due->rows);
    PyMem_Free(due->heap);
    free_object(self);
}
