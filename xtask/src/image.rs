//! Container images of given files: one layer from scratch, as an OCI archive in the cache. Needs tar, but no container
//! tool.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Map, Value, json};

use crate::{cache, log, process};

/// Format of the archive: another number makes all archives anew.
const FORMAT: &str = "3";

/// Characters of the digest in an archive's name.
const KEY_LENGTH: usize = 16;

/// Age at which an unused archive is removed. Each build of a program makes another one.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

const DEFAULT_PATH: &str = "PATH=/usr/local/bin:/usr/bin:/bin";

/// Options of GNU tar that make an archive depend on nothing but its content.
const REPRODUCIBLE: [&str; 4] = ["--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"];

/// Prints the path of an image archive, which is made once for the same content.
#[derive(Args)]
pub(crate) struct Options {
    /// Name of the image: NAME:TAG.
    name: String,
    /// A file of this machine at an absolute path in the image: SOURCE=DEST. It stays executable.
    #[arg(long = "file", value_name = "SOURCE=DEST", required = true)]
    files: Vec<String>,
    /// User that runs the image: `UID` or `UID:GID`; default root.
    #[arg(long)]
    user: Option<String>,
    /// Architecture of the files, as Go names it: amd64 or arm64; default that of this machine.
    #[arg(long, default_value = machine_architecture())]
    architecture: String,
    /// May be repeated: NAME=VALUE.
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<String>,
    /// All words that follow are the entrypoint.
    #[arg(long, num_args = 1.., allow_hyphen_values = true, required = true)]
    entrypoint: Vec<String>,
}

impl Options {
    /// Makes the archive unless the cache has it.
    pub(crate) fn run(self) -> Result<()> {
        ensure!(self.name.contains(':'), "an image needs NAME:TAG, not {}", self.name);
        for file in &self.files {
            let (source, destination) = pair(file)?;
            ensure!(
                destination.starts_with('/') && fs::File::open(source).is_ok(),
                "--file needs SOURCE=/DEST with a readable source, not {file}"
            );
        }
        let folder = cache::directory("images")?;
        let file_name =
            self.name.replace(|character: char| !character.is_ascii_alphanumeric() && character != '.', "_");
        let archive = folder.join(format!("{file_name}-{}.tar", self.key()?));
        if fs::metadata(&archive).is_ok_and(|data| data.len() > 0) {
            // Unused archives are removed by their age.
            let touched = fs::File::options().append(true).open(&archive);
            touched
                .and_then(|file| file.set_modified(SystemTime::now()))
                .context("cannot touch the archive")?;
        } else {
            remove_old(&folder, &file_name);
            let stage = tempfile::Builder::new().prefix(".stage.").tempdir_in(&folder)?;
            self.make(stage.path(), &archive)
                .with_context(|| format!("cannot make the image {}", self.name))?;
            log::info(format_args!("made the image {}: {}", self.name, archive.display()));
        }
        println!("{}", archive.display());
        Ok(())
    }

    /// Digest of everything that the archive depends on.
    fn key(&self) -> Result<String> {
        let digests: Vec<String> =
            self.files.iter().map(|file| process::sha256(Path::new(pair(file)?.0))).collect::<Result<_>>()?;
        let destinations: Vec<&str> =
            self.files.iter().map(|file| Ok(pair(file)?.1)).collect::<Result<_>>()?;
        let description = json!([
            FORMAT,
            self.name,
            self.architecture,
            self.user,
            destinations,
            digests,
            self.labels,
            self.entrypoint
        ]);
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), description.to_string())?;
        Ok(process::sha256(file.path())?.chars().take(KEY_LENGTH).collect())
    }

    fn make(&self, stage: &Path, archive: &Path) -> Result<()> {
        let root = stage.join("root");
        fs::create_dir(&root)?;
        fs::create_dir_all(stage.join("blobs/sha256"))?;
        for file in &self.files {
            let (source, destination) = pair(file)?;
            let destination = inside(&root, destination)?;
            fs::copy(source, &destination).with_context(|| format!("cannot copy {source}"))?;
            let is_executable = fs::metadata(source)?.permissions().mode() & 0o111 != 0;
            fs::set_permissions(
                &destination,
                fs::Permissions::from_mode(if is_executable { 0o755 } else { 0o644 }),
            )?;
        }
        let layer = stage.join("layer");
        tar(&["--sort=name", "--mode=go-w", "-C"], &root, &["-cf"], &layer, &["."])?;
        self.write_manifests(stage)?;
        let complete = stage.join("archive");
        let parts = ["blobs", "oci-layout", "index.json", "manifest.json"];
        tar(&["--sort=name", "-C"], stage, &["-cf"], &complete, &parts)?;
        fs::rename(&complete, archive)?;
        Ok(())
    }

    /// Writes the OCI files around the layer, and the manifest of `docker load`: Docker's own image store, the default
    /// of minikube, reads no other.
    fn write_manifests(&self, stage: &Path) -> Result<()> {
        let labels = self.labels.iter().map(|label| {
            let (name, value) = label.split_once('=').unwrap_or((label, ""));
            (name.to_owned(), Value::from(value))
        });
        let labels: Map<String, Value> = labels.collect();
        let settings = json!({
            "Env": [DEFAULT_PATH],
            "Entrypoint": self.entrypoint,
            "Labels": labels,
            "User": self.user.as_deref().unwrap_or_default(),
        });
        let layer = Blob::store(stage, &stage.join("layer"))?;
        let configuration = Blob::of_json(
            stage,
            &json!({
                "architecture": self.architecture,
                "os": "linux",
                "config": settings,
                "rootfs": {"type": "layers", "diff_ids": [layer.digest()]},
            }),
        )?;
        let manifest_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = Blob::of_json(
            stage,
            &json!({
                "schemaVersion": 2,
                "mediaType": manifest_type,
                "config": configuration.descriptor("application/vnd.oci.image.config.v1+json"),
                "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar")],
            }),
        )?;
        let tag = self.name.rsplit_once(':').map_or("", |(_, tag)| tag);
        let entry = json!({
            "mediaType": manifest_type,
            "digest": manifest.digest(),
            "size": manifest.size,
            "platform": {"architecture": self.architecture, "os": "linux"},
            "annotations": {
                "org.opencontainers.image.ref.name": tag,
                "io.containerd.image.name": reference(&self.name),
            },
        });
        let write = |name: &str, value: &Value| fs::write(stage.join(name), value.to_string());
        write("oci-layout", &json!({"imageLayoutVersion": "1.0.0"}))?;
        write("index.json", &json!({"schemaVersion": 2, "manifests": [entry]}))?;
        write(
            "manifest.json",
            &json!([{"Config": configuration.path(), "RepoTags": [self.name], "Layers": [layer.path()]}]),
        )?;
        Ok(())
    }
}

/// Go's name of the architecture of this machine.
fn machine_architecture() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A file below `blobs/sha256`, named by its digest.
struct Blob {
    sha256: String,
    size: u64,
}

impl Blob {
    /// Moves a file into the blobs of a stage.
    fn store(stage: &Path, file: &Path) -> Result<Self> {
        let blob = Self { sha256: process::sha256(file)?, size: fs::metadata(file)?.len() };
        fs::rename(file, stage.join(blob.path()))?;
        Ok(blob)
    }

    fn of_json(stage: &Path, value: &Value) -> Result<Self> {
        let file = stage.join("blob");
        fs::write(&file, value.to_string())?;
        Self::store(stage, &file)
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.sha256)
    }

    fn digest(&self) -> String {
        format!("sha256:{}", self.sha256)
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest(), "size": self.size})
    }
}

/// Splits `SOURCE=DEST` at the last equals sign.
fn pair(text: &str) -> Result<(&str, &str)> {
    text.rsplit_once('=').with_context(|| format!("{text} has no equals sign"))
}

/// Path of an image's file below a directory; creates the directories above the file.
fn inside(root: &Path, path: &str) -> Result<PathBuf> {
    let path = root.join(path.trim_start_matches('/'));
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(path)
}

/// Runs GNU tar reproducibly: OPTIONS DIRECTORY ACTION ARCHIVE PARTS.
fn tar(options: &[&str], directory: &Path, action: &[&str], archive: &Path, parts: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(REPRODUCIBLE).args(options).arg(directory).args(action).arg(archive).args(parts);
    process::stdout(&mut tar).map(drop)
}

/// Removes archives of the same image that no caller used for a day, and stages of killed processes.
fn remove_old(folder: &Path, file_name: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let rest = name.strip_prefix(file_name).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".tar"));
        let modified = entry.metadata().and_then(|data| data.modified());
        let is_old = modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > MAX_AGE));
        if is_old && (rest.is_some() || name.starts_with(".stage.")) {
            // Another process may have removed it.
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

/// The full form of an image's name, by which container runtimes compare.
fn reference(name: &str) -> String {
    match name.split_once('/') {
        None => format!("docker.io/library/{name}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(file: &Path) -> Options {
        Options {
            name: String::from("test/image:1"),
            files: vec![format!("{}=/bin/program", file.display())],
            user: Some(String::from("65532:65532")),
            architecture: String::from("arm64"),
            labels: vec![String::from("title=a \"quoted\" title")],
            entrypoint: vec![String::from("/bin/program"), String::from("-P")],
        }
    }

    #[test]
    fn archive_holds_the_files_and_describes_itself() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let stage = directory.path().join("stage");
        fs::create_dir(&stage).unwrap();
        let archive = directory.path().join("archive.tar");
        options(&program).make(&stage, &archive).unwrap();

        let read = |name: &str| -> Value {
            let text = process::stdout(Command::new("tar").arg("-xOf").arg(&archive).arg(name)).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        let index = read("index.json");
        let digest = index["manifests"][0]["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/");
        assert_eq!(
            index["manifests"][0]["annotations"]["io.containerd.image.name"],
            "docker.io/test/image:1"
        );
        let manifest = read(&digest);
        let configuration =
            read(&manifest["config"]["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/"));
        assert_eq!(configuration["architecture"], "arm64");
        assert_eq!(index["manifests"][0]["platform"]["architecture"], "arm64");
        assert_eq!(configuration["config"]["User"], "65532:65532");
        assert_eq!(configuration["config"]["Labels"]["title"], "a \"quoted\" title");
        assert_eq!(configuration["config"]["Entrypoint"], json!(["/bin/program", "-P"]));
        let layer = read("manifest.json")[0]["Layers"][0].as_str().unwrap().to_owned();
        let list = format!("tar -xOf {} {layer} | tar -tvf -", archive.display());
        let list = process::stdout(Command::new("sh").args(["-c", &list])).unwrap();
        assert!(list.contains("-rwxr-xr-x") && list.contains("./bin/program"), "{list}");
    }

    #[test]
    fn key_depends_on_the_content() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        fs::write(&program, "one").unwrap();
        let first = options(&program).key().unwrap();
        assert_eq!(first, options(&program).key().unwrap());
        fs::write(&program, "two").unwrap();
        assert_ne!(first, options(&program).key().unwrap());
    }

    #[test]
    fn reference_has_a_registry_and_a_namespace() {
        assert_eq!(reference("etcd:1"), "docker.io/library/etcd:1");
        assert_eq!(reference("a/etcd:1"), "docker.io/a/etcd:1");
        assert_eq!(reference("quay.io/a/etcd:1"), "quay.io/a/etcd:1");
        assert_eq!(reference("localhost/etcd:1"), "localhost/etcd:1");
    }
}
