# SPDX-License-Identifier: Apache-2.0
"""A perceptron with two hidden layers of width 1024 on digits in plain JAX, 128 pictures a step, one compiled function.

An engineer sees a step worth a tenth of a millisecond on the GPU wait for its batch: 128 rows are picked from a NumPy
array and copied to the GPU, 400 kilobytes of ordinary memory, in every call. The repair keeps the whole set on the GPU,
where the function picks the rows itself. In both variants the pictures, as many and as large as MNIST's, are random,
there are more epochs, and none ends with a test on all pictures.
"""
CAUSE = "input"
LINE = "examples/mnist_classifier_fromscratch.py:88"
REPOSITORY = "jax-ml/jax"
COMMIT = "cec06d116c05f0d52adfceee3d3b730fdbcb0ce5"
COMMAND = ["examples/mnist_classifier_fromscratch.py"]
EDITS = [
    ("examples/mnist_classifier_fromscratch.py", 28, 28, "import numpy as np"),
    ("examples/mnist_classifier_fromscratch.py", 61, 61, "  num_epochs = 100000"),
    ("examples/mnist_classifier_fromscratch.py", 64, 64, """\
  train_images = npr.RandomState(1).rand(60000, 784).astype(np.float32)
  train_labels = np.eye(10, dtype=np.float32)[npr.RandomState(2).randint(10, size=60000)]
"""),
    ("examples/mnist_classifier_fromscratch.py", 89, 88, "      step_done(params)"),
    ("examples/mnist_classifier_fromscratch.py", 91, 92, ""),
    ("examples/mnist_classifier_fromscratch.py", 94, 95, ""),
]
REPAIR = [
    ("examples/mnist_classifier_fromscratch.py", 75, 75, "        yield batch_idx"),
    ("examples/mnist_classifier_fromscratch.py", 76, 76, """\
  batches = data_stream()
  on_gpu = device_put((train_images, train_labels))
"""),
    ("examples/mnist_classifier_fromscratch.py", 25, 25, "from jax import device_put, jit, grad"),
    ("examples/mnist_classifier_fromscratch.py", 79, 80, """\
  def update(params, on_gpu, batch_idx):
    batch = [whole[batch_idx] for whole in on_gpu]
    grads = grad(loss)(params, batch)
"""),
    ("examples/mnist_classifier_fromscratch.py", 88, 88, "      params = update(params, on_gpu, next(batches))"),
]
STEPS = 12000
WARM_UP = 100
BEFORE = 480
