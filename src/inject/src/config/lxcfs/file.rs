//! The files of lxcfs and the releases of lxcfs that provide them.
//!
//! Sources: lxc/lxcfs `src/proc_fuse.c` and `src/sysfs_fuse.c` for the releases; opencontainers/runc
//! `libcontainer/rootfs_linux.go` (`checkProcMount`) for the paths below /proc that a container runtime accepts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A file or directory of lxcfs.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum LxcfsFile {
    /// /proc/cpuinfo
    Cpuinfo,
    /// /proc/diskstats
    Diskstats,
    /// /proc/loadavg; has the value of the container only if lxcfs runs with `-l`
    Loadavg,
    /// /proc/meminfo
    Meminfo,
    /// /proc/stat
    Stat,
    /// /proc/swaps
    Swaps,
    /// /proc/uptime
    Uptime,
    /// /proc/slabinfo; falls back to the file of the host, which only root may read there
    Slabinfo,
    /// /sys/devices/system/cpu/online
    CpuOnline,
    /// /sys/devices/system/cpu, the whole directory; replaces `cpu-online`
    Cpu,
    /// /proc/pressure/cpu; runc rejects it
    PressureCpu,
    /// /proc/pressure/io; runc rejects it
    PressureIo,
    /// /proc/pressure/memory; runc rejects it
    PressureMemory,
}

/// A release of lxcfs. It determines the available files.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Profile {
    /// 3.0
    #[serde(rename = "lxcfs-3.0")]
    Lxcfs30,
    /// 3.1 to 4.0
    #[serde(rename = "lxcfs-4")]
    Lxcfs4,
    /// 5.0
    #[default]
    #[serde(rename = "lxcfs-5")]
    Lxcfs5,
    /// 6.0
    #[serde(rename = "lxcfs-6")]
    Lxcfs6,
    /// 7.0
    #[serde(rename = "lxcfs-7")]
    Lxcfs7,
}

// === impl LxcfsFile ===

impl LxcfsFile {
    /// All files.
    pub const ALL: [Self; 13] = [
        Self::Cpuinfo,
        Self::Diskstats,
        Self::Loadavg,
        Self::Meminfo,
        Self::Stat,
        Self::Swaps,
        Self::Uptime,
        Self::Slabinfo,
        Self::CpuOnline,
        Self::Cpu,
        Self::PressureCpu,
        Self::PressureIo,
        Self::PressureMemory,
    ];

    /// The name in configurations and annotations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpuinfo => "cpuinfo",
            Self::Diskstats => "diskstats",
            Self::Loadavg => "loadavg",
            Self::Meminfo => "meminfo",
            Self::Stat => "stat",
            Self::Swaps => "swaps",
            Self::Uptime => "uptime",
            Self::Slabinfo => "slabinfo",
            Self::CpuOnline => "cpu-online",
            Self::Cpu => "cpu",
            Self::PressureCpu => "pressure-cpu",
            Self::PressureIo => "pressure-io",
            Self::PressureMemory => "pressure-memory",
        }
    }

    /// The file with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.name() == name)
    }

    /// The path in a container, and below the root of lxcfs.
    pub fn path(self) -> &'static str {
        match self {
            Self::Cpuinfo => "/proc/cpuinfo",
            Self::Diskstats => "/proc/diskstats",
            Self::Loadavg => "/proc/loadavg",
            Self::Meminfo => "/proc/meminfo",
            Self::Stat => "/proc/stat",
            Self::Swaps => "/proc/swaps",
            Self::Uptime => "/proc/uptime",
            Self::Slabinfo => "/proc/slabinfo",
            Self::CpuOnline => "/sys/devices/system/cpu/online",
            Self::Cpu => "/sys/devices/system/cpu",
            Self::PressureCpu => "/proc/pressure/cpu",
            Self::PressureIo => "/proc/pressure/io",
            Self::PressureMemory => "/proc/pressure/memory",
        }
    }

    /// Whether this is a directory.
    pub(crate) fn is_directory(self) -> bool {
        self == Self::Cpu
    }

    pub(super) fn oldest_profile(self) -> Profile {
        match self {
            Self::Loadavg | Self::CpuOnline => Profile::Lxcfs4,
            Self::Slabinfo | Self::Cpu => Profile::Lxcfs5,
            Self::PressureCpu | Self::PressureIo | Self::PressureMemory => Profile::Lxcfs7,
            _ => Profile::Lxcfs30,
        }
    }

    pub(super) fn is_rejected_by_runc(self) -> bool {
        matches!(self, Self::PressureCpu | Self::PressureIo | Self::PressureMemory)
    }

    /// Whether pods get the file by default. Excluded are `slabinfo`, which may have the content of the host's file,
    /// `cpu`, which overlaps with `cpu-online`, and the files that runc rejects.
    pub(super) fn is_safe(self) -> bool {
        !self.is_rejected_by_runc() && !matches!(self, Self::Slabinfo | Self::Cpu)
    }
}
