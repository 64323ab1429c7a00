"""The models that tools/huggingface_oracle.py makes: the configuration of each, and its file."""

from dataclasses import dataclass, field


@dataclass
class Case:
    """A model of transformers, small enough to keep in the checkout."""

    name: str
    # Of transformers: `Llama` for LlamaConfig, LlamaForCausalLM and LlamaModel.
    family: str = "Llama"
    # The class of its configuration, if that is not named as the family.
    config_class: str = ""
    # The arguments of its configuration that differ from `SMALL`.
    config: dict = field(default_factory=dict)
    # Without a head the outputs are hidden states, and the loss is MSE to recorded targets.
    head: bool = True
    # How the class of a model that predicts the next token is called, after its family.
    kind: str = "ForCausalLM"
    # The classes of a model that classifies a whole text. The model has no other head then.
    labels: int = 0
    # The family's own configuration in place of `SMALL`.
    base: dict | None = None
    # Whether its inputs are pictures, and not texts.
    takes_pictures: bool = False
    # The first token that is drawn. RoBERTa counts positions without padding.
    first_token: int = 0
    # The type of the weights in the file.
    dtype: str = "float32"
    # The largest file of weights, as `save_pretrained` takes it.
    shard: str = "50GB"
    # The tokens of a text whose logits are recorded, and of one to train on.
    length: int = 9
    train_length: int = 10


# One key-value head for three heads, and a head_dim that is not hidden_size / heads.
SMALL = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 63,
    "pad_token_id": None,
}


# Dropout is off, since its random numbers differ.
SMALL_BERT = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 33,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}

SMALL_GPT2 = {
    "vocab_size": 64,
    "n_positions": 64,
    "n_embd": 21,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": 37,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": None,
    "eos_token_id": 63,
}


SMALL_NEOX = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 63,
}

SMALL_VIT = {
    "image_size": 12,
    "patch_size": 4,
    "num_channels": 3,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}


def scaled(kind, **more):
    """A configuration with scaled angles. It has 16 positions, so that short texts go beyond them,
    and a small rope_theta, so that angles turn fast, slowly, and between the two."""
    parameters = {"rope_type": kind, "rope_theta": 100.0, **more}
    return {"max_position_embeddings": 16, "rope_parameters": parameters}


CASES = [
    Case("llama", config={"attention_bias": True, "mlp_bias": True}),
    Case("llama-tied", config={"tie_word_embeddings": True}, dtype="bfloat16"),
    Case("llama-sharded", head=False, shard="22KB"),
    # The wavelengths of its angles are 6, 16, 40, 100 and 250 positions: shorter than 32 / 4,
    # between that and 32 / 1, and longer.
    Case(
        "llama3-scaled",
        config={
            **scaled(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
            "max_position_embeddings": 256,
        },
    ),
    Case("llama-linear", config=scaled("linear", factor=4.0)),
    # The angles depend on the length of the text, once that is beyond the 16 positions. Greedy
    # text ends before, because a cache keeps keys that were turned by other angles.
    Case(
        "llama-dynamic",
        config=scaled("dynamic", factor=2.0),
        length=24,
        train_length=20,
    ),
    Case(
        "llama-yarn",
        config={
            **scaled("yarn", factor=4.0, original_max_position_embeddings=16),
            "max_position_embeddings": 64,
        },
    ),
    Case(
        "llama-longrope",
        config={
            **scaled(
                "longrope",
                factor=4.0,
                original_max_position_embeddings=16,
                short_factor=[1.0, 1.1, 1.2, 1.3, 1.4],
                long_factor=[1.5, 2.0, 2.5, 3.0, 4.0],
            ),
            "max_position_embeddings": 64,
        },
        length=24,
        train_length=20,
    ),
    Case(
        "smollm-3",
        family="SmolLM3",
        config={
            "num_hidden_layers": 4,
            "no_rope_layers": [1, 1, 0, 1],
            "tie_word_embeddings": True,
            "hidden_size": 20,
            "intermediate_size": 24,
        },
    ),
    # A window shorter than the texts, in all layers.
    Case("mistral", family="Mistral", config={"sliding_window": 4, "num_key_value_heads": 3}),
    # Biases of queries, keys and values, heads as wide as hidden_size / heads, and one window. A
    # small rope_theta, as biases of keys that turn slowly have gradients of mere rounding.
    Case(
        "qwen2",
        family="Qwen2",
        config={
            "num_attention_heads": 2,
            "head_dim": 12,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    Case("qwen3", family="Qwen3", config={"num_key_value_heads": 3}),
    # A window in the first layer, and caps that change scores and logits.
    Case(
        "gemma2",
        family="Gemma2",
        config={
            "sliding_window": 4,
            "query_pre_attn_scalar": 6,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    # Angles of two kinds, one of them scaled.
    Case(
        "gemma3",
        family="Gemma3",
        config_class="Gemma3TextConfig",
        config={
            "sliding_window": 4,
            "query_pre_attn_scalar": 6,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0},
            },
        },
    ),
    # Half of each head turns, and texts are longer than the first training's.
    Case(
        "phi-3",
        family="Phi3",
        config={
            **scaled(
                "longrope",
                partial_rotary_factor=0.5,
                short_factor=[1.0, 1.5],
                long_factor=[2.0, 3.5],
            ),
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 16,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "sliding_window": 6,
        },
        length=24,
        train_length=20,
    ),
    Case("bert", family="Bert", base=SMALL_BERT, head=False),
    Case(
        "bert-classifier",
        family="Bert",
        base=SMALL_BERT,
        config={"hidden_act": "gelu_new", "type_vocab_size": 3, "layer_norm_eps": 1e-5},
        labels=5,
    ),
    # Its positions begin in row 5.
    Case(
        "roberta",
        family="Roberta",
        base=SMALL_BERT,
        config={"pad_token_id": 4, "bos_token_id": None, "eos_token_id": None},
        labels=3,
        first_token=5,
    ),
    Case("gpt2", family="GPT2", base=SMALL_GPT2, kind="LMHeadModel"),
    Case("pythia", family="GPTNeoX", base=SMALL_NEOX),
    # Attention before the linear layers, whole heads that turn, and no biases of attention.
    Case(
        "pythia-sequential",
        family="GPTNeoX",
        base=SMALL_NEOX,
        config={
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "partial_rotary_factor": 1.0,
            },
        },
    ),
    Case("vit", family="ViT", base=SMALL_VIT, labels=5, takes_pictures=True),
]
