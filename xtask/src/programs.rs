//! Programs that tests and benchmarks run: found on the machine, taken from the cache, built, or installed.
//!
//! The order is `KUBEBUILDER_ASSETS`, `PATH` if the version fits, the cache, and then a build into the cache. Debian
//! packages are installed instead of built.

mod build;
mod catalog;
mod debian;
mod search;
mod version;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use self::{
    catalog::{DEFAULT_NAMES, Program, Source},
    search::{Found, Search},
};
use crate::log;

/// Finds, builds or installs programs.
#[derive(Args)]
pub(crate) struct Options {
    /// Directory with a Go module for each program that is built: `scripts/lib/programs`.
    #[arg(long)]
    modules: PathBuf,
    /// Print the path of one program and nothing else.
    #[arg(long)]
    path: bool,
    /// Print nothing but progress and errors.
    #[arg(long, conflicts_with = "path")]
    quiet: bool,
    /// Ignore programs of the machine: an image needs the static build.
    #[arg(long)]
    own_build: bool,
    /// Programs; without any, all of them.
    names: Vec<String>,
}

impl Options {
    /// Prints a line `NAME=PATH` for each program.
    pub(crate) fn run(self) -> Result<()> {
        let names =
            if self.names.is_empty() { DEFAULT_NAMES.map(str::to_owned).to_vec() } else { self.names };
        let programs: Vec<Program> =
            names.iter().map(|name| catalog::program(name)).collect::<Result<_>>()?;
        let search = Search { modules: self.modules, own_build: self.own_build };
        install_missing(&search, &programs)?;
        for (name, program) in names.iter().zip(programs) {
            let found = provide(&search, &program)?;
            if self.path {
                println!("{}", found.path.display());
            } else if !self.quiet {
                log::info(format_args!("{}: {} (from {})", program.name, found.path.display(), found.origin));
                println!("{name}={}", found.path.display());
            }
        }
        Ok(())
    }
}

/// Installs the Debian packages of all programs that are missing, at once.
fn install_missing(search: &Search, programs: &[Program]) -> Result<()> {
    let mut packages = Vec::new();
    for program in programs {
        if let Source::Debian { packages: needed } = &program.source
            && search.find(program)?.is_none()
        {
            packages.extend(
                needed.iter().copied().filter(|package| !packages.contains(package)).collect::<Vec<_>>(),
            );
        }
    }
    debian::remove_stale_policy();
    if packages.is_empty() { Ok(()) } else { debian::install(&packages) }
}

/// Finds a program, or builds it.
fn provide(search: &Search, program: &Program) -> Result<Found> {
    if let Some(found) = search.find(program)? {
        return Ok(found);
    }
    match &program.source {
        Source::Debian { packages } => bail!(
            "{} is still not on PATH although the Debian package {} is installed",
            program.name,
            packages.join(" ")
        ),
        Source::Go(module) => {
            let version = version::required(&search.modules, module)?;
            build::build(search, program, module, &version)
        }
    }
}
