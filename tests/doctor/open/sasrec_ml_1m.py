# SPDX-License-Identifier: Apache-2.0
"""SASRec learns from a million ratings what is watched next: the last 200 films of 128 users a step, Adam.

An engineer sees three processes that put batches together film by film: for each of up to 200 places of 128 users a
random number is drawn with NumPy, checked against what the user has seen, and written into an array, some thirty
milliseconds a batch. The network is small, width 50, and its step takes less time than a batch needs to arrive.
The repair starts twelve processes. The other repair prints the loss in every fiftieth step, the only one that it then
waits for. In both variants the ratings are made up.
"""
CAUSE = "input"
LINE = "python/main.py:103"
LINES = ["python/main.py:56", "python/utils.py:87", "python/utils.py:49"]
REPOSITORY = "pmixer/SASRec.pytorch"
COMMIT = "fde8a9c08febc2c898dc269b1d98ab762c50d2be"
FOLDER = "python"
COMMAND = ["main.py", "--dataset=ml-1m", "--train_dir=default", "--maxlen=200", "--dropout_rate=0.2",
           "--device=cuda"]
EDITS = []
REPAIR = [("python/main.py", 56, 56, """\
    sampler = WarpSampler(user_train, usernum, itemnum, batch_size=args.batch_size, maxlen=args.maxlen, n_workers=12)
""")]
OTHER_REPAIRS = {"sync": [("python/main.py", 117, 117, """\
            if step % 50 == 0:
                print("loss in epoch {} iteration {}: {}".format(epoch, step, loss.item()))
""")]}
STEPS = 500
WARM_UP = 150
