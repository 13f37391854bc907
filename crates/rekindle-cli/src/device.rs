//! What the tensors of a run are on.

use burn::tensor::Device;
use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::meter;

/// What the tensors of a run are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceName {
    /// The processor, by Burn's portable backend
    #[default]
    Cpu,
    /// The first NVIDIA GPU; needs a `rekindle` that was built for it (docs/cuda.md)
    Cuda,
}

// Where a command runs its model.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct DeviceArguments {
    /// What to run on: cpu, or cuda for the first NVIDIA GPU (docs/cuda.md)
    #[arg(
        long,
        value_enum,
        default_value = "cpu",
        value_name = "NAME",
        help_heading = "Device",
        hide_possible_values = true
    )]
    device: DeviceName,
}

impl DeviceArguments {
    /// Whether it has memory of its own, of which neither the system nor the allocator knows.
    pub(crate) fn is_apart(self) -> bool {
        self.device == DeviceName::Cuda
    }

    /// The device with autodiff, whose memory is what [`meter`] tells from now on.
    pub(crate) fn open(self) -> Result<Device, Failure> {
        let device = match self.device {
            DeviceName::Cpu => Device::flex(),
            DeviceName::Cuda => cuda()?,
        };
        meter::tell_of(&device);
        Ok(device.autodiff())
    }

    /// Refuses what is known of the machine's own memory alone.
    pub(crate) fn refuse_with(self, flag: &str, asked: bool, hint: &str) -> Result<(), Failure> {
        match self.is_apart() && asked {
            false => Ok(()),
            true => Err(Failure::request(
                anyhow::anyhow!("{flag} is given with --device cuda, expected with --device cpu alone"),
                hint,
            )),
        }
    }
}

/// The processor, for commands that run on nothing else.
pub(crate) fn cpu() -> Device {
    Device::flex().autodiff()
}

#[cfg(feature = "cuda")]
fn cuda() -> Result<Device, Failure> {
    // Burn's own way to the device panics where there is none.
    match Device::enumerate(burn::tensor::DeviceType::Cuda).is_empty() {
        false => Ok(Device::cuda(0)),
        true => Err(Failure::request(
            anyhow::anyhow!(
                "--device is cuda, but no NVIDIA GPU with a driver was found, expected one at least"
            ),
            "`nvidia-smi` lists those that there are; leave --device out to run on the processor",
        )),
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Result<Device, Failure> {
    Err(Failure::request(
        anyhow::anyhow!(
            "--device is cuda, but this `rekindle` was built for the processor alone, expected cpu"
        ),
        "build it with `--features cuda`, or with `--features cuda-nvrtc` where LLVM cannot be downloaded: docs/cuda.md",
    ))
}
