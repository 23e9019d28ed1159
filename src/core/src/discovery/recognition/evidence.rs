//! The evidence of one container: its command, its arguments, its image and the names of its variables.
//!
//! The rules of a pod resolve the doubtful cases, by the controller of the pod and the ports of the container.

use std::fmt;

use super::{
    images::{ImageKind, member_variable},
    programs::{Commands, may_have_member_flag},
};

/// The rule by which a pod counts as a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecognitionRule {
    /// The annotation [`MEMBER`](crate::annotations::MEMBER).
    Annotation,
    /// A command starts etcd.
    Command,
    /// The image is etcd's and runs its default command.
    Image,
    /// A flag that only members have.
    Flag(&'static str),
    /// A variable that only members have.
    Variable(&'static str),
    /// The image is named etcd, its command is unknown, and the pod is controlled or exposed like a member.
    PossibleImage,
    /// A program is named after etcd, and the container exposes a port of etcd.
    PossibleProgram,
    /// The container is configured as a member of a controlled pod, but runs another program at present.
    Configured(&'static str),
    /// The container has an image of etcd and sleeps, and the controller of its pod keeps the data of the member.
    Asleep,
}

/// The rule by which a container that mentions etcd runs no member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Veto {
    /// The container runs one of etcd's tools.
    Tool(&'static str),
    /// The container runs a proxy.
    Proxy(&'static str),
    /// etcd prints a text and ends.
    Prints,
    /// The container waits.
    Sleeps,
    /// The commands are known, and none of them starts etcd.
    OtherCommands,
    /// The image's name has this word of another program, and no port of a member is declared.
    OtherImage(&'static str),
    /// The image or the program is named etcd, and nothing else shows a member.
    Unproven,
    /// The controller of the pod is a Job.
    Job,
    /// The annotation excludes the pod.
    Excluded,
    /// The annotation names a container that the pod does not have.
    NoSuchContainer,
}

/// Evidence that depends on the pod of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// An image of etcd with an unknown command, or an image with etcd and unknown words in its name.
    Image,
    /// An image with etcd and this word of another program in its name.
    OtherImage(&'static str),
    /// An unknown program with etcd in its name.
    Program,
    /// An image of etcd that sleeps.
    Asleep,
    /// A member variable, in a container that certainly runs another program.
    Configured(&'static str, Veto),
}

/// The evidence of one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Nothing mentions etcd in a way that could start it.
    Unrelated,
    /// The container mentions etcd, and certainly runs no member.
    Vetoed(Veto),
    /// The container runs a member if its pod confirms it.
    Doubtful(Doubt),
    /// The container runs a member.
    Member(RecognitionRule),
}

// === impl Doubt ===

impl Doubt {
    /// The rule by which the container runs a member if its pod confirms it.
    pub(super) fn rule(self) -> RecognitionRule {
        match self {
            Self::Image | Self::OtherImage(_) => RecognitionRule::PossibleImage,
            Self::Program => RecognitionRule::PossibleProgram,
            Self::Asleep => RecognitionRule::Asleep,
            Self::Configured(variable, _) => RecognitionRule::Configured(variable),
        }
    }

    /// The rule by which the container runs no member if its pod does not confirm it.
    pub(super) fn veto(self) -> Veto {
        match self {
            Self::Image | Self::Program => Veto::Unproven,
            Self::OtherImage(word) => Veto::OtherImage(word),
            Self::Asleep => Veto::Sleeps,
            Self::Configured(_, veto) => veto,
        }
    }
}

// === impl Evidence ===

impl Evidence {
    /// Returns the evidence of a container with this image, command, arguments, and names of variables. Containers that
    /// do not mention etcd cost no allocation.
    pub fn new<'a>(
        image: &str,
        command: impl Iterator<Item = &'a str> + Clone,
        arguments: impl Iterator<Item = &'a str> + Clone,
        variables: impl Iterator<Item = &'a str>,
    ) -> Self {
        let variable = member_variable(variables);
        // Searching for the texts is cheaper than splitting the command, and most commands do not contain them.
        let mentions = |part: &str| part.contains("etcd") || may_have_member_flag(part);
        let is_unrelated = variable.is_none()
            && !image.contains("etcd")
            && !command.clone().chain(arguments.clone()).any(mentions);
        if is_unrelated {
            return Self::Unrelated;
        }
        let command: Vec<&str> = command.collect();
        let arguments: Vec<&str> = arguments.collect();
        Self::of_parts(ImageKind::new(image), &command, &arguments, variable)
    }

    fn of_parts(
        image: ImageKind,
        command: &[&str],
        arguments: &[&str],
        variable: Option<&'static str>,
    ) -> Self {
        let is_default = command.is_empty() && arguments.first().is_none_or(|first| first.starts_with('-'));
        let is_proxy = |word: &&str| matches!(*word, "grpc-proxy" | "gateway");
        let commands = if is_default {
            Commands::of_arguments(arguments)
        } else if command.is_empty() && image == ImageKind::Etcd && arguments.first().is_some_and(is_proxy) {
            // The arguments belong to the entrypoint of the image, which is etcd.
            Commands::new(&[&["etcd"], arguments].concat(), false)
        } else {
            Commands::new(&[command, arguments].concat(), command.is_empty())
        };
        if commands.starts_etcd {
            return Self::Member(RecognitionRule::Command);
        }
        if let Some(flag) = commands.member_flag {
            return Self::Member(RecognitionRule::Flag(flag));
        }
        if !commands.has_unknown {
            return Self::without_etcd(&commands, image, variable);
        }
        match (variable, image) {
            (Some(variable), _) => Self::Member(RecognitionRule::Variable(variable)),
            (None, ImageKind::Etcd) if is_default => Self::Member(RecognitionRule::Image),
            (None, ImageKind::Etcd | ImageKind::Unknown) => Self::Doubtful(Doubt::Image),
            (None, ImageKind::Other(word)) => Self::Doubtful(Doubt::OtherImage(word)),
            (None, ImageKind::Unrelated) if commands.has_unknown_named_etcd => Self::Doubtful(Doubt::Program),
            (None, ImageKind::Unrelated) => match commands.veto() {
                Some(veto) => Self::Vetoed(veto),
                None => Self::Unrelated,
            },
        }
    }

    /// Returns the evidence of a container with known commands that do not start etcd.
    fn without_etcd(commands: &Commands, image: ImageKind, variable: Option<&'static str>) -> Self {
        match (commands.veto(), variable) {
            (Some(veto), _) => Self::Vetoed(veto),
            (None, Some(variable)) => {
                let veto = if commands.sleeps { Veto::Sleeps } else { Veto::OtherCommands };
                Self::Doubtful(Doubt::Configured(variable, veto))
            }
            (None, None) if image == ImageKind::Unrelated => Self::Unrelated,
            (None, None) if commands.sleeps && image == ImageKind::Etcd => Self::Doubtful(Doubt::Asleep),
            (None, None) if commands.sleeps => Self::Vetoed(Veto::Sleeps),
            (None, None) => Self::Vetoed(Veto::OtherCommands),
        }
    }

    /// Whether the container can run a member, depending on its pod.
    pub fn may_be_member(self) -> bool {
        matches!(self, Self::Doubtful(_) | Self::Member(_))
    }
}

// === impl Commands ===

impl Commands {
    /// The veto of a command of etcd's own programs.
    fn veto(&self) -> Option<Veto> {
        self.proxy
            .map(Veto::Proxy)
            .or_else(|| self.tool.map(Veto::Tool))
            .or_else(|| self.prints.then_some(Veto::Prints))
    }
}

// === impl RecognitionRule ===

impl RecognitionRule {
    /// Whether the container itself shows that it runs etcd, whatever the annotations and the controller of the pod are.
    pub fn is_evident(self) -> bool {
        matches!(self, Self::Command | Self::Image | Self::Flag(_) | Self::Variable(_))
    }
}

impl fmt::Display for RecognitionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotation => f.write_str("annotation etcd-guard.io/member"),
            Self::Command => f.write_str("the command starts etcd"),
            Self::Image => f.write_str("the image is named etcd"),
            Self::Flag(name) => write!(f, "member-only flag --{name}"),
            Self::Variable(name) => write!(f, "member-only variable {name}"),
            Self::PossibleImage => {
                f.write_str("the image is named etcd, and the pod has the controller or a port of a member")
            }
            Self::PossibleProgram => {
                f.write_str("a program is named after etcd, and the container declares a port of etcd")
            }
            Self::Asleep => f.write_str(
                "the image is named etcd and sleeps, and the pod's controller keeps the member's data",
            ),
            Self::Configured(name) => {
                write!(
                    f,
                    "member-only variable {name} in a pod with a controller, which keeps the member's data"
                )
            }
        }
    }
}

// === impl Veto ===

impl Veto {
    /// Whether the commands of the container show that it runs no member.
    pub fn is_certain(self) -> bool {
        matches!(self, Self::Tool(_) | Self::Proxy(_) | Self::Prints | Self::Sleeps | Self::OtherCommands)
    }
}

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tool(name) => write!(f, "the container runs {name}"),
            Self::Proxy(command) => write!(f, "the container runs etcd {command}, which is no member"),
            Self::Prints => f.write_str("etcd prints its version or its flags and ends"),
            Self::Sleeps => f.write_str("the container sleeps"),
            Self::OtherCommands => f.write_str("no command of the container starts etcd"),
            Self::OtherImage(word) => {
                write!(f, "the image belongs to another program ({word:?} in its name)")
            }
            Self::Unproven => {
                f.write_str("only a name contains etcd: no controller, port, flag or variable of a member")
            }
            Self::Job => f.write_str("pods of Jobs are members only with the annotation"),
            Self::Excluded => f.write_str("annotation etcd-guard.io/member excludes the pod"),
            Self::NoSuchContainer => {
                f.write_str("annotation etcd-guard.io/member names no container of the pod")
            }
        }
    }
}
