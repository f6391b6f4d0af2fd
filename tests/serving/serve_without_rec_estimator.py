# SPDX-License-Identifier: Apache-2.0
"""Serves a SavedModel in a process that never imports rec_estimator, through three loaders.

Run with the arguments LOADER EXPORT_DIR JSON REQUEST.npz RESPONSE.npz: LOADER is v1, v2
(tf.saved_model.load of either version) or c (libtensorflow's C API), JSON the names of the
signature's tensors: {"inputs": {key: tensor}, "outputs": {key: tensor}}.
"""

import ctypes
import json
import os
import pathlib
import sys

import numpy as np


def serve_v1(folder, names, request):
    """tf.compat.v1.saved_model.load and a session."""
    import tensorflow.compat.v1 as tf

    with tf.Session(graph=tf.Graph()) as session:
        tf.saved_model.load(session, ["serve"], folder)
        feed = {names["inputs"][key]: value for key, value in request.items()}
        return session.run(names["outputs"], feed)


def serve_v2(folder, names, request):
    """tf.saved_model.load and its signature."""
    import tensorflow as tf

    model = tf.saved_model.load(folder)
    tensors = {key: tf.constant(value) for key, value in request.items()}
    outputs = model.signatures["predict"](**tensors)
    return {key: outputs[key].numpy() for key in names["outputs"]}


class _Output(ctypes.Structure):
    _fields_ = [("oper", ctypes.c_void_p), ("index", ctypes.c_int)]


_DTYPES = {1: np.float32, 3: np.int32, 9: np.int64}  # TF_DataType


def c_library():
    """TensorFlow's C library, with the types that its functions return."""
    wheel = pathlib.Path(os.environ["TENSORFLOW_FOLDER"])
    tf = ctypes.CDLL(str(wheel / "libtensorflow_cc.so.2"))
    pointers = (
        "TF_NewStatus TF_Message TF_NewGraph TF_NewSessionOptions TF_LoadSessionFromSavedModel "
        "TF_GraphOperationByName TF_AllocateTensor TF_TensorData"
    )
    for name in pointers.split():
        getattr(tf, name).restype = ctypes.c_void_p
    tf.TF_Dim.restype = ctypes.c_int64
    return tf


def serve_c(folder, names, request):
    """The C API: TF_LoadSessionFromSavedModel and TF_SessionRun."""
    tf = c_library()
    status = ctypes.c_void_p(tf.TF_NewStatus())

    def check():
        assert tf.TF_GetCode(status) == 0, ctypes.string_at(tf.TF_Message(status))

    graph = ctypes.c_void_p(tf.TF_NewGraph())
    options = ctypes.c_void_p(tf.TF_NewSessionOptions())
    tags = (ctypes.c_char_p * 1)(b"serve")
    session = ctypes.c_void_p(
        tf.TF_LoadSessionFromSavedModel(
            options, None, folder.encode(), tags, 1, graph, None, status
        )
    )
    check()

    def outputs(tensors):
        found = (_Output * len(tensors))()
        for i, tensor in enumerate(tensors):
            operation, _, index = tensor.partition(":")
            found[i].oper = tf.TF_GraphOperationByName(graph, operation.encode())
            found[i].index = int(index)
            assert found[i].oper, f"no operation {operation}"
        return found

    def tensor(value):
        (dtype,) = (number for number, kind in _DTYPES.items() if kind == value.dtype)
        dims = (ctypes.c_int64 * value.ndim)(*value.shape)
        made = tf.TF_AllocateTensor(dtype, dims, value.ndim, ctypes.c_size_t(value.nbytes))
        data = ctypes.c_void_p(tf.TF_TensorData(ctypes.c_void_p(made)))
        ctypes.memmove(data, np.ascontiguousarray(value).ctypes.data, value.nbytes)
        return made

    def array(made):
        made = ctypes.c_void_p(made)
        shape = [tf.TF_Dim(made, i) for i in range(tf.TF_NumDims(made))]
        value = np.empty(shape, _DTYPES[tf.TF_TensorType(made)])
        ctypes.memmove(value.ctypes.data, ctypes.c_void_p(tf.TF_TensorData(made)), value.nbytes)
        return value

    inputs = outputs([names["inputs"][key] for key in request])
    values = (ctypes.c_void_p * len(request))(*(tensor(value) for value in request.values()))
    fetches = outputs(list(names["outputs"].values()))
    results = (ctypes.c_void_p * len(fetches))()
    tf.TF_SessionRun(
        session,
        *(None, inputs, values, len(request)),
        *(fetches, results, len(fetches)),
        *(None, 0, None, status),
    )
    check()
    return dict(zip(names["outputs"], map(array, results)))


def main(loader, folder, names, request, response):
    """Serves one request."""
    serve = {"v1": serve_v1, "v2": serve_v2, "c": serve_c}[loader]
    np.savez(response, **serve(folder, json.loads(names), dict(np.load(request))))
    libraries = pathlib.Path("/proc/self/maps").read_text()
    assert "_rec_ops" not in libraries and "rec_estimator" not in sys.modules
    if loader == "c":
        assert "tensorflow" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
