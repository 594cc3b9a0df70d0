/* What the compiled steps share with Python: the base classes of connections and accounts, described in
 * `serving_state`, and a send. */
#pragma once

#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>

#define BROKEN (-1)

static PyTypeObject *connection_type, *tally_type;

typedef struct {
    PyObject_HEAD
    PyObject *reply, *inbuf; /* NULL is None too */
    long long due_ns;
    Py_ssize_t step, row;
    int fd;
} Connection;

static PyMemberDef connection_members[] = {
    {"reply", T_OBJECT, offsetof(Connection, reply), 0, NULL},
    {"inbuf", T_OBJECT, offsetof(Connection, inbuf), 0, NULL},
    {"due_ns", T_LONGLONG, offsetof(Connection, due_ns), 0, NULL},
    {"step", T_PYSSIZET, offsetof(Connection, step), 0, NULL},
    {"row", T_PYSSIZET, offsetof(Connection, row), 0, NULL},
    {"fd", T_INT, offsetof(Connection, fd), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define COUNTERS(X) \
    X(requests) X(completed) X(writes) X(bytes_in) X(bytes_out) X(in_flight) X(max_in_flight)

typedef struct {
    PyObject_HEAD
#define COUNTER(name) long long name;
    COUNTERS(COUNTER)
} Tally;

static PyMemberDef tally_members[] = {
#define COUNTER_MEMBER(name) {#name, T_LONGLONG, offsetof(Tally, name), 0, NULL},
    COUNTERS(COUNTER_MEMBER)
    {NULL, 0, 0, 0, NULL},
};

/* An object of a heap type owns a reference to its type. */
static void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc free_memory = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_memory(self);
    Py_DECREF(type);
}

/* Not garbage-collected: neither a reply nor a buffer refers to a connection. */
static void free_connection(PyObject *self) {
    Connection *connection = (Connection *)self;
    Py_CLEAR(connection->reply);
    Py_CLEAR(connection->inbuf);
    free_object(self);
}

static int is_none(PyObject *object) { return object == NULL || object == Py_None; }

/* A borrowed reference; NULL if there is none. */
static Connection *connection_at(PyObject *table, long fd) {
    if (fd < 0 || fd >= PyList_Size(table))
        return NULL;
    PyObject *found = PyList_GetItem(table, fd);
    return PyObject_TypeCheck(found, connection_type) ? (Connection *)found : NULL;
}

/* The number of bytes that the kernel accepted; BROKEN if the client is gone. */
static Py_ssize_t send_bytes(int fd, PyObject *bytes, Py_ssize_t *size) {
    char *data;
    if (PyBytes_AsStringAndSize(bytes, &data, size) < 0)
        return BROKEN;
    Py_ssize_t sent;
    do {
        sent = send(fd, data, *size, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : BROKEN;
    return sent;
}
