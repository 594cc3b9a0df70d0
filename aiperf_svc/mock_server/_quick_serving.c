/* The two innermost steps of a serving process, compiled: see `quick_serving`.
 *
 * The Python sources of `quick_serving`, server and sender document these steps and remain the reference. Everything
 * but the common case is handed back to them. Built against the stable ABI, so one library serves every Python from
 * 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "_due_writes.h"
#include "_quick_events.h"

/* --- the module ------------------------------------------------------------------------------- */

static PyType_Slot connection_slots[] = {
    {Py_tp_members, connection_members}, {Py_tp_dealloc, free_connection}, {0, NULL}};
static PyType_Slot tally_slots[] = {
    {Py_tp_members, tally_members}, {Py_tp_dealloc, free_object}, {0, NULL}};
static PyMethodDef quick_events_methods[] = {
    {"poll", poll_method, METH_O, NULL},
    {"next_unhandled", next_unhandled, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot quick_events_slots[] = {{Py_tp_new, make_quick_events},
                                           {Py_tp_methods, quick_events_methods},
                                           {Py_tp_dealloc, free_quick_events},
                                           {0, NULL}};
static PyMethodDef due_writes_methods[] = {
    {"add", add, METH_O, NULL},
    {"first_ns", first_ns, METH_NOARGS, NULL},
    {"shift", shift, METH_O, NULL},
    {"next_write", next_write, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot due_writes_slots[] = {{Py_tp_new, make_due_writes},
                                         {Py_tp_methods, due_writes_methods},
                                         {Py_tp_dealloc, free_due_writes},
                                         {0, NULL}};

#define NAMED(name) "aiperf_svc.mock_server._quick_serving." #name
static PyType_Spec connection_spec = {NAMED(Connection), sizeof(Connection), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, connection_slots};
static PyType_Spec tally_spec = {
    NAMED(Tally), sizeof(Tally), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, tally_slots};
static PyType_Spec quick_events_spec = {
    NAMED(QuickEvents), sizeof(QuickEvents), 0, Py_TPFLAGS_DEFAULT, quick_events_slots};
static PyType_Spec due_writes_spec = {
    NAMED(DueWrites), sizeof(DueWrites), 0, Py_TPFLAGS_DEFAULT, due_writes_slots};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_quick_serving", NULL, -1, NULL, NULL, NULL, NULL, NULL};

/* The new type, which lives as long as the module; NULL with an exception set. */
static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(spec);
    return type == NULL || PyModule_AddType(module, type) < 0 ? NULL : type;
}

PyMODINIT_FUNC PyInit__quick_serving(void) {
#define INTERN(name) \
    if ((name_##name = PyUnicode_InternFromString(#name)) == NULL) \
        return NULL;
    INTERN(whole)
    DUE_NAMES(INTERN)
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || (connection_type = add_type(module, &connection_spec)) == NULL ||
        (tally_type = add_type(module, &tally_spec)) == NULL ||
        add_type(module, &quick_events_spec) == NULL ||
        add_type(module, &due_writes_spec) == NULL) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
