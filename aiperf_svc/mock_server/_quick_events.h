/* Complete requests whose response is one send, like `quick_serving.QuickEvents`. */
#include <Python.h>

#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "_serving_state.h"

#define READ_SIZE 65536
#define EVENTS_PER_POLL 512 /* as quick_serving has it */

/* One buffer per process instead of one per call: a reader holds the GIL, and copies the bytes out before it releases
 * the GIL. */
static char arrived[READ_SIZE];

static const char id_line[] = "x-request-id:";

static PyObject *name_whole;

/* --- from a request to its reply -------------------------------------------------------------- */

/* The received bytes without the line with the request's id, like `split_request_id`. */
static PyObject *request_of(Py_ssize_t size) {
    const char *end = arrived + size, *at = arrived;
    const Py_ssize_t id_size = sizeof id_line - 1;
    while ((at = memchr(at, '\r', end - at)) != NULL && end - at >= 4) {
        if (at[1] != '\n') {
            at += 1;
            continue;
        }
        if (at[2] == '\r' && at[3] == '\n')
            break; /* the head is over */
        if ((at[2] | 0x20) == 'x' && end - at >= 2 + id_size &&
            strncasecmp(at + 2, id_line, id_size) == 0) {
            const char *stop = at + 2 + id_size;
            while ((stop = memchr(stop, '\r', end - stop)) != NULL && end - stop >= 2 &&
                   stop[1] != '\n')
                stop += 1;
            if (stop == NULL || end - stop < 2)
                break; /* not whole */
            Py_ssize_t before = at - arrived;
            PyObject *request = PyBytes_FromStringAndSize(NULL, before + (end - stop));
            if (request == NULL)
                return NULL;
            char *cut = PyBytes_AsString(request);
            memcpy(cut, arrived, before);
            memcpy(cut + before, stop, end - stop);
            return request;
        }
        at += 2;
    }
    return PyBytes_FromStringAndSize(arrived, size);
}

/* A borrowed reference; NULL if there is none, or with an exception set. */
static PyObject *find_reply(PyObject *known, Py_ssize_t size) {
    PyObject *request = request_of(size);
    PyObject *reply = request == NULL ? NULL : PyDict_GetItemWithError(known, request);
    Py_XDECREF(request);
    return reply;
}

/* --- the events of a poll --------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *table, *known; /* whole requests and their replies */
    Tally *tally;
    int epoll_fd, is_waiting;
    int place, count; /* of the events */
    struct epoll_event events[EVENTS_PER_POLL];
} QuickEvents;

/* Waits for events if it `is_waiting`, else takes the available ones. */
static int poll_events(QuickEvents *self) {
    int count;
    do {
        Py_BEGIN_ALLOW_THREADS
        count = epoll_wait(
            self->epoll_fd, self->events, EVENTS_PER_POLL, self->is_waiting ? -1 : 0);
        Py_END_ALLOW_THREADS
        if (count < 0 && errno != EINTR) {
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
        if (count < 0 && PyErr_CheckSignals() < 0)
            return -1;
    } while (count < 0);
    self->place = 0;
    self->count = count;
    return 0;
}

static PyObject *poll_method(PyObject *object, PyObject *is_waiting) {
    QuickEvents *self = (QuickEvents *)object;
    self->is_waiting = is_waiting == Py_True;
    if (poll_events(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Like Sender.whole_sent, for a reply that was sent. */
static void count_whole(Tally *tally, Py_ssize_t received, Py_ssize_t sent) {
    tally->requests++;
    tally->bytes_in += received;
    if (tally->in_flight >= tally->max_in_flight)
        tally->max_in_flight = tally->in_flight + 1;
    tally->writes++;
    tally->bytes_out += sent;
    tally->completed++;
}

/* The event for the server: BROKEN if no bytes were read, NULL if no reply was found. */
static PyObject *left_of(const struct epoll_event *event, Py_ssize_t size, PyObject *reply,
                         Py_ssize_t sent) {
    return Py_BuildValue("(iIy#On)", event->data.fd, event->events, size < 0 ? NULL : arrived, size,
                         reply == NULL ? Py_None : reply, sent);
}

/* None if the event was served, else the part left to the server; NULL with an exception set. */
static PyObject *serve_event(QuickEvents *self, const struct epoll_event *event) {
    int fd = event->data.fd;
    Connection *connection = connection_at(self->table, fd);
    if (connection == NULL || event->events & EPOLLOUT || !is_none(connection->reply) ||
        !is_none(connection->inbuf))
        return left_of(event, BROKEN, NULL, 0);
    Py_ssize_t size;
    do {
        size = recv(fd, arrived, READ_SIZE, MSG_DONTWAIT);
    } while (size < 0 && errno == EINTR);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        Py_RETURN_NONE;
    if (size <= 0)
        return left_of(event, 0, NULL, 0); /* an error is an end too */
    PyObject *reply = find_reply(self->known, size);
    if (reply == NULL)
        return PyErr_Occurred() ? NULL : left_of(event, size, NULL, 0);
    PyObject *whole = PyObject_GetAttr(reply, name_whole);
    if (whole == NULL)
        return NULL;
    Py_ssize_t whole_size = 0, sent = send_bytes(fd, whole, &whole_size);
    Py_DECREF(whole);
    if (sent != whole_size)
        return PyErr_Occurred() ? NULL : left_of(event, size, reply, sent);
    count_whole(self->tally, size, sent);
    Py_RETURN_NONE;
}

static PyObject *next_unhandled(PyObject *object, PyObject *unused) {
    QuickEvents *self = (QuickEvents *)object;
    for (;;) {
        while (self->place < self->count) {
            PyObject *left = serve_event(self, &self->events[self->place++]);
            if (left != Py_None) {
                self->is_waiting = 0;
                return left;
            }
            Py_DECREF(left);
        }
        /* Nothing is due as long as nothing is left to the server. */
        if (!self->is_waiting)
            Py_RETURN_NONE;
        if (poll_events(self) < 0)
            return NULL;
    }
}

static PyObject *make_quick_events(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    PyObject *epoll, *table, *known, *tally;
    if (!PyArg_ParseTuple(arguments, "OO!O!O!", &epoll, &PyList_Type, &table, &PyDict_Type, &known,
                          tally_type, &tally))
        return NULL;
    int epoll_fd = PyObject_AsFileDescriptor(epoll);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    QuickEvents *self = epoll_fd < 0 ? NULL : (QuickEvents *)allocate(type, 0);
    if (self == NULL)
        return NULL;
    self->table = Py_NewRef(table);
    self->known = Py_NewRef(known);
    self->tally = (Tally *)Py_NewRef(tally);
    self->epoll_fd = epoll_fd;
    return (PyObject *)self;
}

static void free_quick_events(PyObject *object) {
    QuickEvents *self = (QuickEvents *)object;
    Py_XDECREF(self->table);
    Py_XDECREF(self->known);
    Py_XDECREF((PyObject *)self->tally);
    free_object(object);
}
