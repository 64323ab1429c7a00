"""The models of the zoo: torchvision, timm and transformers, by explicit names, each with the
arguments and the inputs that it is made and traced with. All weights are random.

Images have 64 x 64 pixels where a model takes them, else the next size that it takes. Of timm's
modules the smallest variant is here, and some further families. Models of transformers have two
layers of 32 features."""

import contextlib
import importlib
import itertools

# The versions that the names are of.
TORCHVISION, TIMM, TRANSFORMERS = "0.26.0", "1.0.31", "5.24.0"
SUITES = {
    "classification": "torchvision, classification",
    "segmentation": "torchvision, segmentation",
    "video": "torchvision, video",
    "timm": "timm",
    "transformers": "transformers",
}


class Case:
    """A model: its suite, its inputs as in a model file, the arguments it is made with, and those
    that its builder does not take but the constructor inside does (`within`: of `module:name`).
    A model of transformers has the name of a class and of its configuration, too."""

    def __init__(self, suite, name, inputs, arguments=None, within=None, classes=None):
        self.suite, self.name, self.inputs = suite, name, inputs
        self.arguments, self.within, self.classes = arguments or {}, within or {}, classes

    @property
    def key(self):
        """The name that no other case has."""
        return f"{self.suite}/{self.name}"

    def made_with(self):
        """Everything that tells one way of making the model from another, as one text."""
        given = {**self.arguments, **{name: value for _, name, value in self.inside()}}
        said = [f"{name}={value}" for name, value in given.items()]
        return "; ".join([*self.inputs, *said])

    def inside(self):
        return [(where, *pair) for where, given in self.within.items() for pair in given.items()]

    def make(self):
        """The module."""
        with contextlib.ExitStack() as stack:
            for where, given in self.within.items():
                stack.enter_context(overridden(where, given))
            return getattr(self, f"make_{SUITES[self.suite].partition(',')[0]}")()

    def make_torchvision(self):
        models = importlib.import_module("torchvision.models")
        without = {"weights": None}
        if self.suite == "segmentation":
            without["weights_backbone"] = None
        return models.get_model(self.name, **without, **self.arguments)

    def make_timm(self):
        return importlib.import_module("timm").create_model(self.name, **self.arguments)

    def make_transformers(self):
        transformers = importlib.import_module("transformers")
        model, configuration = self.classes
        return getattr(transformers, model)(getattr(transformers, configuration)(**self.arguments))


@contextlib.contextmanager
def overridden(where, given):
    """While a builder runs, a function or class that it calls gets these arguments."""
    module, _, path = where.partition(":")
    holder = importlib.import_module(module)
    *parts, last = path.split(".")
    for part in parts:
        holder = getattr(holder, part)
    before, called = vars(holder)[last], getattr(holder, last)

    def call(*arguments, **named):
        return called(*arguments, **{**named, **given})

    setattr(holder, last, staticmethod(call) if isinstance(holder, type) else call)
    try:
        yield
    finally:
        setattr(holder, last, before)


def image(size=64):
    return [f"x: [batch, 3, {size}, {size}]"]


def film(frames, size):
    return [f"x: [batch, 3, {frames}, {size}, {size}]"]


def words(**shape):
    """Inputs of whole numbers; masks are bool, as BossMan takes them."""
    return [
        f"{name}: {{shape: [{', '.join(map(str, ['batch', *sizes]))}], "
        f"dtype: {'bool' if name.endswith('mask') else 'int64'}}}"
        for name, sizes in shape.items()
    ]


# Many models of one kind: names alone.
CLASSIFICATION = """
alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161
densenet169 densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3
efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_l efficientnet_v2_m
efficientnet_v2_s mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large
mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf
regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf
regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50
resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0
shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b
swin_v2_s swin_v2_t wide_resnet101_2 wide_resnet50_2
""".split()
# Those that take no 64 x 64 pixels or more arguments: the size and the arguments.
OTHER_CLASSIFICATION = {
    "googlenet": (64, {"init_weights": False, "aux_logits": False}),
    "inception_v3": (80, {"init_weights": False, "aux_logits": False}),
    "maxvit_t": (224, {}),
    "vgg11": (32, {}),
    "vgg11_bn": (32, {}),
    "vgg13": (32, {}),
    "vgg13_bn": (32, {}),
    "vgg16": (32, {}),
    "vgg16_bn": (32, {}),
    "vgg19": (32, {}),
    "vgg19_bn": (32, {}),
    "vit_b_16": (64, {"image_size": 64}),
    "vit_b_32": (64, {"image_size": 64}),
    "vit_h_14": (56, {"image_size": 56}),
    "vit_l_16": (64, {"image_size": 64}),
    "vit_l_32": (64, {"image_size": 64}),
}
FILM = {"spatial_size": (64, 64), "temporal_size": 8}
# Arguments of constructors that the builders set themselves: sizes of films, and fewer layers for
# the models that have 300 to 650 million parameters.
WITHIN = {
    "mvit_v1_b": {"torchvision.models.video.mvit:MViT": FILM},
    "mvit_v2_s": {"torchvision.models.video.mvit:MViT": FILM},
    "regnet_y_128gf": {"torchvision.models.regnet:BlockParams.from_init_params": {"depth": 9}},
    "vit_h_14": {"torchvision.models.vision_transformer:VisionTransformer": {"num_layers": 4}},
    "vit_l_16": {"torchvision.models.vision_transformer:VisionTransformer": {"num_layers": 6}},
    "vit_l_32": {"torchvision.models.vision_transformer:VisionTransformer": {"num_layers": 6}},
}

SEGMENTATION = """
deeplabv3_mobilenet_v3_large deeplabv3_resnet101 deeplabv3_resnet50 fcn_resnet101 fcn_resnet50
lraspp_mobilenet_v3_large
""".split()

# Frames, pixels and arguments.
VIDEO = {
    "mc3_18": (4, 64, {}),
    "mvit_v1_b": (8, 64, {}),
    "mvit_v2_s": (8, 64, {}),
    "r2plus1d_18": (4, 64, {}),
    "r3d_18": (4, 64, {}),
    "s3d": (16, 224, {}),
    "swin3d_b": (4, 64, {}),
    "swin3d_s": (4, 64, {}),
    "swin3d_t": (4, 64, {}),
}

# The smallest variant of each module of timm, then further families. Pixels and arguments.
TIMM_MODELS = {
    "beit_base_patch16_224": (64, {"img_size": 64}),
    "halonet_h1": (256, {}),
    "mobileone_s1": (64, {}),
    "cait_xxs24_224": (64, {"img_size": 64}),
    "coat_tiny": (64, {"img_size": 64}),
    "convit_tiny": (64, {"img_size": 64}),
    "convmixer_768_32": (64, {}),
    "convnext_zepto_rms": (64, {}),
    "cpubone_nano": (64, {}),
    "crossvit_tiny_240": (64, {}),
    "csatv2": (64, {}),
    "cs3darknet_focus_s": (64, {}),
    "cspnext_tiny": (64, {}),
    "davit_tiny": (64, {}),
    "deepseek_vit_412m": (56, {"depth": 2}),
    "deit_tiny_patch16_224": (64, {"img_size": 64}),
    "densenet121": (64, {}),
    "dla46x_c": (64, {}),
    "dpn48b": (64, {}),
    "edgenext_xx_small": (64, {}),
    "efficientformer_l1": (224, {}),
    "efficientformerv2_s0": (64, {"img_size": 64}),
    "mobilenetv2_035": (64, {}),
    "efficientvim_m1": (64, {}),
    "efficientvit_b0": (64, {}),
    "efficientvit_m0": (64, {}),
    "vit_tiny_patch16_dinov3_qkvb": (64, {}),
    "fasternet_t0": (64, {}),
    "fastvit_t8": (64, {}),
    "focalnet_tiny_srf": (64, {}),
    "gcvit_xxtiny": (64, {"img_size": 64}),
    "gemma4_vit_167m": (64, {"depth": 2}),
    "ghostnet_050": (64, {}),
    "hardcorenas_b": (64, {}),
    "hgnetv2_b0": (64, {}),
    "hiera_tiny_224": (64, {"img_size": 64}),
    "sam2_hiera_tiny": (64, {}),
    "hrnet_w18_small": (64, {}),
    "iformer_t": (64, {}),
    "inception_next_atto": (64, {}),
    "inception_resnet_v2": (96, {}),
    "inception_v3": (96, {}),
    "inception_v4": (96, {}),
    "lcnetv2_small": (64, {}),
    "levit_128s": (64, {"img_size": 64}),
    "lowformer_b0": (64, {}),
    "mambaout_femto": (64, {}),
    "maxvit_pico_rw_256": (64, {"img_size": 64}),
    "poolformerv2_s12": (64, {}),
    "gmlp_ti16_224": (64, {"img_size": 64}),
    "mobilenetv3_small_050": (64, {}),
    "mobilenetv5_base": (64, {}),
    "mobilevit_xxs": (64, {}),
    "mvitv2_tiny": (64, {}),
    "naflexvit_base_patch16_parfac_gap": (64, {}),
    "nasnetalarge": (64, {}),
    "nest_tiny": (64, {"img_size": 64}),
    "nextvit_small": (64, {}),
    "nf_regnet_b0": (64, {}),
    "pit_ti_224": (64, {"img_size": 64}),
    "pnasnet5large": (64, {}),
    "pvt_v2_b0": (64, {}),
    "qwen3_vit_88m": (64, {}),
    "rdnet_tiny": (64, {}),
    "regnetx_002": (64, {}),
    "repghostnet_050": (64, {}),
    "repvit_m1": (64, {}),
    "res2next50": (64, {}),
    "resnest14d": (64, {}),
    "resnet10t": (64, {}),
    "resnetv2_18": (64, {}),
    "rexnet_100": (64, {}),
    "selecsls42": (64, {}),
    "legacy_seresnet18": (64, {}),
    "sequencer2d_s": (64, {}),
    "shvit_s1": (64, {}),
    "skresnet18": (64, {}),
    "starnet_s050": (64, {}),
    "swiftformer_xs": (64, {}),
    "swin_tiny_patch4_window7_224": (64, {"img_size": 64}),
    "swinv2_tiny_window16_256": (64, {"img_size": 64}),
    "swinv2_cr_tiny_224": (64, {"img_size": 64}),
    "tiny_vit_5m_224": (64, {}),
    "tnt_s_legacy_patch16_224": (64, {"img_size": 64}),
    "tresnet_m": (64, {}),
    "twins_svt_small": (64, {}),
    "vgg11": (32, {}),
    "visformer_tiny": (64, {"img_size": 64}),
    "vit_tiny_patch16_224": (64, {"img_size": 64}),
    "vit_tiny_r_s16_p8_224": (64, {"img_size": 64}),
    "vit_srelpos_small_patch16_224": (64, {"img_size": 64}),
    "samvit_base_patch16_224": (64, {}),
    "vitamin_small_224": (64, {"img_size": 64}),
    "volo_d1_224": (64, {"img_size": 64}),
    "ese_vovnet19b_slim_dw": (64, {}),
    "legacy_xception": (64, {}),
    "xception41p": (64, {}),
    "xcit_nano_12_p8_224": (64, {}),
    "mixer_s32_224": (64, {"img_size": 64}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "repvgg_a0": (64, {}),
    "coatnet_pico_rw_224": (64, {"img_size": 64}),
    "dm_nfnet_f0": (64, {}),
    "tf_efficientnet_b0": (64, {}),
    "convnextv2_atto": (64, {}),
    "ghostnetv2_100": (64, {}),
    "mobilevitv2_050": (64, {}),
    "mobilenetv4_conv_small": (64, {}),
    "lambda_resnet26t": (64, {}),
    "botnet26t_256": (64, {"img_size": 64}),
    "convformer_s18": (64, {}),
    "poolformer_s12": (64, {}),
    "lcnet_050": (64, {}),
}

TOKENS, PIXELS, PATCHES = 12, {"pixel_values": 32}, {"image_size": 32, "patch_size": 8}
IDS = words(input_ids=[TOKENS], attention_mask=[TOKENS])
BOTH = words(input_ids=[TOKENS], attention_mask=[TOKENS], decoder_input_ids=[TOKENS])
PICTURE = ["pixel_values: [batch, 3, 32, 32]"]
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
WRITER = {**SMALL, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**WRITER, "num_key_value_heads": 2}
SEEN = {name: SMALL[name] for name in list(SMALL)[1:5]}
TOWER = {"text_config": {**SMALL}, "vision_config": {**SEEN, **PATCHES}, "projection_dim": 32}

# The class, that of the configuration, its arguments, and the inputs.
TRANSFORMERS_MODELS = {
    "albert": ("AlbertForSequenceClassification", "AlbertConfig", {**SMALL, "embedding_size": 16}),
    "bert": ("BertForSequenceClassification", "BertConfig", SMALL),
    "deberta_v2": (
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    "distilbert": (
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
    "electra": (
        "ElectraForSequenceClassification",
        "ElectraConfig",
        {**SMALL, "embedding_size": 16},
    ),
    "mpnet": ("MPNetForSequenceClassification", "MPNetConfig", SMALL),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", SMALL),
    "falcon": ("FalconForCausalLM", "FalconConfig", WRITER),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "head_dim": 8}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "use_cache": False,
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", WRITER),
    "granite": ("GraniteForCausalLM", "GraniteConfig", GROUPED),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", GROUPED),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**WRITER, "ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {
            "vocab_size": 64,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
        BOTH,
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 64,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "use_cache": False,
        },
        BOTH,
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": 64,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_mel_bins": 16,
            "max_source_positions": 16,
            "max_target_positions": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "use_cache": False,
        },
        ["input_features: [batch, 16, 32]", *words(decoder_input_ids=[TOKENS])],
    ),
    "wav2vec2": (
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        {
            **{name: SMALL[name] for name in list(SMALL)[:5]},
            "conv_dim": [32, 32],
            "conv_stride": [5, 2],
            "conv_kernel": [10, 3],
            "num_conv_pos_embeddings": 16,
            "num_conv_pos_embedding_groups": 4,
            "layerdrop": 0.0,
            "apply_spec_augment": False,
        },
        ["input_values: [batch, 400]"],
    ),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        TOWER,
        [*words(input_ids=[TOKENS]), *PICTURE, *words(attention_mask=[TOKENS])],
    ),
    "siglip": (
        "SiglipModel",
        "SiglipConfig",
        {name: TOWER[name] for name in ("text_config", "vision_config")},
        [*words(input_ids=[TOKENS]), *PICTURE, *words(attention_mask=[TOKENS])],
    ),
    "convnextv2": (
        "ConvNextV2ForImageClassification",
        "ConvNextV2Config",
        {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 32},
        PICTURE,
    ),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", {**SEEN, **PATCHES}, PICTURE),
    "swin": (
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        PICTURE,
    ),
}


def cases():
    """All models in the order of the page."""
    plain = dict.fromkeys(CLASSIFICATION, (64, {}))
    pictures = sorted({**plain, **OTHER_CLASSIFICATION}.items())
    return list(
        itertools.chain(
            (
                Case("classification", name, image(size), given, WITHIN.get(name))
                for name, (size, given) in pictures
            ),
            (Case("segmentation", name, image()) for name in SEGMENTATION),
            (
                Case("video", name, film(frames, size), given, WITHIN.get(name))
                for name, (frames, size, given) in VIDEO.items()
            ),
            (Case("timm", name, image(size), given) for name, (size, given) in TIMM_MODELS.items()),
            (
                Case("transformers", name, *(inputs or [IDS]), given, classes=(model, settings))
                for name, (model, settings, given, *inputs) in TRANSFORMERS_MODELS.items()
            ),
        )
    )
