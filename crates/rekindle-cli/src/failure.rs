//! What the command says when it cannot go on: what was found, what was expected, and a hint.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use rekindle_models::weights::WeightsError;

use crate::tell::Printable;

/// Why the command stops.
#[derive(Debug)]
pub(crate) struct Failure {
    error: anyhow::Error,
    hint: Option<String>,
    /// The request was wrong, not the machine.
    request: bool,
    /// It was said before: by the first of all ranks.
    told: bool,
}

impl Failure {
    /// A request that cannot be met.
    pub(crate) fn request(error: impl Into<anyhow::Error>, hint: impl Into<String>) -> Self {
        Self { error: error.into(), hint: Some(hint.into()), request: true, told: false }
    }

    /// A request that went wrong.
    pub(crate) fn failed(error: impl Into<anyhow::Error>, hint: impl Into<String>) -> Self {
        Self { request: false, ..Self::request(error, hint) }
    }

    /// A command line that runs nothing, told as clap does: it cannot be read, or asks for help.
    pub(crate) fn usage(error: clap::Error) -> Self {
        Self { error: error.into(), hint: None, request: true, told: false }
    }

    /// Whether it is no failure: somebody asked for help, or for the version.
    pub(crate) fn is_help(&self) -> bool {
        self.error.downcast_ref::<clap::Error>().is_some_and(|usage| !usage.use_stderr())
    }

    /// Says it on standard error; help, on standard output.
    pub(crate) fn tell(&self) {
        match self.error.downcast_ref::<clap::Error>() {
            // In colours, where somebody looks.
            Some(usage) => drop(usage.print()),
            None => tell!("{self}"),
        }
    }

    /// The same, said already.
    pub(crate) fn into_told(self) -> Self {
        Self { told: true, ..self }
    }

    /// The budget that would have done, where a larger one would.
    pub(crate) fn smallest_budget(&self) -> Option<rekindle::Bytes> {
        match self.error.downcast_ref::<rekindle::Error>()? {
            rekindle::Error::BudgetTooSmall { smallest, .. } => Some(*smallest),
            _ => None,
        }
    }

    /// What a rank has said already.
    #[cfg(feature = "mpi")]
    pub(crate) fn told(request: bool) -> Self {
        Self { error: anyhow::anyhow!("a rank failed"), hint: None, request, told: true }
    }

    /// Whether the request was wrong.
    #[cfg(feature = "mpi")]
    pub(crate) fn is_request(&self) -> bool {
        self.request
    }

    /// Whether it was said before.
    pub(crate) fn is_told(&self) -> bool {
        self.told
    }

    /// 2 for a bad request, 1 for a failure, 0 for help.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match (self.is_help(), self.request) {
            (true, _) => 0,
            (false, true) => 2,
            (false, false) => 1,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(usage) = self.error.downcast_ref::<clap::Error>() {
            return write!(formatter, "{}", Printable(usage.to_string().trim_end()));
        }
        let mut said = self.error.to_string();
        write!(formatter, "error: {}", Printable(&said))?;
        for cause in self.error.chain().skip(1) {
            let cause = cause.to_string();
            // Some errors say what their causes say.
            if !said.contains(&cause) {
                write!(formatter, ": {}", Printable(&cause))?;
                said = cause;
            }
        }
        match &self.hint {
            Some(hint) => write!(formatter, "\nhint: {}", Printable(hint)),
            None => Ok(()),
        }
    }
}

impl From<rekindle::Error> for Failure {
    fn from(error: rekindle::Error) -> Self {
        Self { error: error.into(), hint: None, request: false, told: false }
    }
}

impl From<rekindle_models::ConfigError> for Failure {
    fn from(error: rekindle_models::ConfigError) -> Self {
        Self { error: error.into(), hint: None, request: true, told: false }
    }
}

impl From<WeightsError> for Failure {
    fn from(error: WeightsError) -> Self {
        let hint = match &error {
            WeightsError::Read { .. } => "check the path and that the file may be read",
            WeightsError::Format { .. } => "copy or download the file again; nothing was taken from it",
            WeightsError::NoConfig { .. } => {
                "give a file that `rekindle train --save` wrote, or put the model's config.json beside it"
            }
            WeightsError::Write { .. } => "check the folder, its permissions and the room on the disk",
            WeightsError::NoNames => "models that `rekindle train` builds have names; leave --save out",
            _ => "give the flags of the model that the weights are of, such as --model, --layers and --width",
        };
        let request = !matches!(error, WeightsError::Write { .. });
        Self { error: error.into(), hint: Some(hint.to_owned()), request, told: false }
    }
}

/// Reads a file that the user named.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    refuse_device(path)?;
    std::fs::read(path).map_err(|error| {
        let error = anyhow::Error::new(error).context(format!("cannot read `{}`", path.display()));
        Failure::request(error, "check the path and that the file may be read")
    })
}

/// Refuses what may never end.
pub(crate) fn refuse_device(path: &Path) -> Result<(), Failure> {
    match is_device(path) {
        false => Ok(()),
        true => Err(Failure::request(
            anyhow::anyhow!("`{}` is a device, which may never end, expected a file", path.display()),
            "give a file, or the end of a pipe",
        )),
    }
}

#[cfg(unix)]
fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let kind = path.metadata().map(|found| found.file_type());
    kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device())
}

#[cfg(not(unix))]
fn is_device(_: &Path) -> bool {
    false
}

/// Reads a text file that the user named.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    String::from_utf8(read(path)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let error = anyhow::anyhow!("`{}` is not text: byte {at} is not UTF-8", path.display());
        Failure::request(error, "profiles, plans and settings are text in UTF-8")
    })
}
