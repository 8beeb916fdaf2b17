# SPDX-License-Identifier: Apache-2.0
"""A network learns to paint photographs in a style, judged by the features of VGG-16; four of 256 x 256 a step, Adam.

An engineer sees a loader without workers: the training loop itself decodes four photographs of 640 x 480, scales, crops
and converts them, some five milliseconds each, and the GPU, done with the step before, waits. Its own work, TF32
convolutions over four small images, takes a third of that. The repair gives the loader eight workers. The other repair
sums the losses on the GPU, which the loop now waits for twice a step, and leaves the decoding where it is. In both
variants the weights of VGG are random, the photographs made up, and there are more epochs of fewer photographs.
"""
CAUSE = "input"
LINE = "fast_neural_style/neural_style/neural_style.py:72"
REPOSITORY = "pytorch/examples"
COMMIT = "77f55b912142e11fcfdf5b530231fb9c52f181e8"
FOLDER = "fast_neural_style"
COMMAND = ["neural_style/neural_style.py", "train", "--dataset", "photographs", "--save-model-dir", "saved",
           "--style-image", "photographs/all/000.jpg", "--epochs", "100", "--accel"]
EDITS = [("fast_neural_style/neural_style/vgg.py", 10, 10,
          "        vgg_pretrained_features = models.vgg16(weights=None).features")]
REPAIR = [("fast_neural_style/neural_style/neural_style.py", 49, 49,
           "    train_loader = DataLoader(train_dataset, batch_size=args.batch_size, num_workers=8)")]
OTHER_REPAIRS = {"sync": [
    ("fast_neural_style/neural_style/neural_style.py", 98, 99, """\
            agg_content_loss += content_loss.detach()
            agg_style_loss += style_loss.detach()
"""),
]}
STEPS = 180
