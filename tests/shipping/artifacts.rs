//! The chart, the manifests, the image, the kubectl plugin, the monitoring files and the scripts.

mod chart;
mod chart_readme;
mod chart_values;
mod chart_variants;
mod completion;
mod image;
mod krew;
mod manifests;
mod monitoring;
mod release;
pub(crate) mod scripts;
