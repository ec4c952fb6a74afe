//! Frames of a stack in a snapshot: which are of the program, and which operator of PyTorch they called.

/// Returns whether a frame with this file is one in Python.
pub fn is_python(file: &str) -> bool {
    // Notebooks and interactive sessions have names such as `<ipython-input-3-abc>`, and so has code that PyTorch generates.
    file.ends_with(".py") || (file.starts_with('<') && !file.starts_with("<frozen "))
}

/// Returns whether a file in Python is PyTorch's, or one that it has written.
pub fn is_of_pytorch(file: &str) -> bool {
    let own = |rest: &str| PARTS.iter().any(|part| rest.starts_with(part));
    file.contains("-packages/torch/")
        || file.split("/torch/").skip(1).any(own)
        || file.strip_prefix("torch/").is_some_and(own)
        || file.contains("/torchinductor_")
        || file.starts_with("<eval_with_key>")
}

/// Returns the operator that the innermost frame of the program called, given the names and files of the frames inside of it, the
/// innermost first: of the dispatcher (`aten::mm`), or else the innermost function of PyTorch's Python
/// (`torch.nn.functional.linear`).
pub fn operator<'a>(inside: impl DoubleEndedIterator<Item = (&'a str, &'a str)> + Clone) -> Option<String> {
    let dispatched = inside.clone().rev().find_map(|(name, _)| {
        let (operator, _) = name.strip_prefix(DISPATCHED)?.split_once("::")?;
        Some(format!("aten::{}", cut(operator)))
    });
    dispatched.or_else(|| inside.clone().find(|(_, file)| is_python(file)).map(|(name, file)| function(name, file)))
}

/// Returns the name of a function of PyTorch with its module.
fn function(name: &str, file: &str) -> String {
    let module = file.rsplit_once("torch/").and_then(|(_, path)| path.strip_suffix(".py"));
    match module {
        Some(module) => cut(&format!("torch.{}.{name}", module.replace('/', "."))),
        None => cut(name),
    }
}

fn cut(name: &str) -> String {
    name.chars().take(OPERATOR_CHARS).collect()
}

/// The functions of the dispatcher: `at::_ops::mm::call(...)`.
const DISPATCHED: &str = "at::_ops::";
/// Folders and files of the package `torch`, by which a checkout of PyTorch is told from a program in a folder called `torch`.
const PARTS: [&str; 16] = [
    "_",
    "amp/",
    "ao/",
    "autograd/",
    "cuda/",
    "distributed/",
    "functional.py",
    "fx/",
    "jit/",
    "lib/",
    "library.py",
    "nn/",
    "optim/",
    "overrides.py",
    "storage.py",
    "utils/",
];
/// Maximum length of an operator in characters; longer ones are cut.
const OPERATOR_CHARS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_programs_are_told_from_those_of_pytorch() {
        for program in
            ["/home/me/torch/train.py", "model.py", "/opt/torchvision/models/vit.py", "<ipython-input-3-0a>", "<stdin>"]
        {
            assert!(is_python(program) && !is_of_pytorch(program), "{program}");
        }
        for pytorch in [
            "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py",
            "/venv/lib/python3.11/site-packages/torch/testing/x.py",
            "/src/pytorch/torch/_tensor.py",
            "torch/nn/functional.py",
            "/tmp/torchinductor_me/ab/cab.py",
            "<eval_with_key>.7",
        ] {
            assert!(is_of_pytorch(pytorch), "{pytorch}");
        }
        assert!(!is_python("/venv/lib/libtorch_cpu.so") && !is_python("<frozen runpy>"));
    }

    #[test]
    fn the_operator_is_what_the_program_called() {
        let inside = [
            ("at::detail::empty_cuda(c10::ArrayRef<long>)", "libtorch_cuda.so"),
            ("at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)", "libtorch_cpu.so"),
            ("at::_ops::linear::call(at::Tensor const&)", "libtorch_cpu.so"),
            ("linear", "/x/site-packages/torch/nn/functional.py"),
            ("forward", "/x/site-packages/torch/nn/modules/linear.py"),
        ];
        assert_eq!(operator(inside.into_iter()).as_deref(), Some("aten::linear"));
        assert_eq!(operator(inside.into_iter().skip(3)).as_deref(), Some("torch.nn.functional.linear"));
        assert_eq!(operator([("forward", "<eval_with_key>.7")].into_iter()).as_deref(), Some("forward"));
        assert_eq!(operator([("malloc", "libc.so")].into_iter()), None);
    }
}
