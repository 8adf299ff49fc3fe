//! `[sweep]`: axes over any key of a configuration, expanded to one source for each combination of values.

use super::DECODE_KEYS;
use super::layers::{Origin, Source, place, read, typed_again};
use anyhow::{Context, Result, bail};
use oasis_core::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// `[sweep]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepSpec {
    /// Keys with lists of values; every value of one meets every value of the others.
    #[serde(default)]
    pub product: toml::Table,
    /// Tables of keys whose lists have one length and advance together.
    #[serde(default)]
    pub zip: Vec<toml::Table>,
}

/// Keys that advance together, with their values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Dotted keys.
    pub keys: Vec<String>,
    /// `values[i]` are the values of place i, one a key.
    pub values: Vec<Vec<toml::Value>>,
}

/// Dotted keys and their values.
pub type Values = Vec<(String, toml::Value)>;

/// Combinations that share everything but keys of cells: one run, whose cells are those of all of them.
#[derive(Debug, Clone)]
pub struct Group {
    /// What the run has in place of the file's values; empty where no axis goes beyond cells.
    pub values: Values,
    /// The configurations, in the order of the axes.
    pub sources: Vec<Source>,
}

/// A configuration with its axes.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// The file, without its `[sweep]`.
    pub source: Source,
    /// Axes: `product` in the order of its keys, then `zip` as written. The first one changes slowest.
    pub axes: Vec<Axis>,
    table: toml::Table,
}

/// Reads a sweep and lays `sets` over its configuration.
///
/// # Errors
/// What [`super::load`] refuses; no `[sweep]`, axes without values, of unequal lengths or over one key twice.
pub fn load_sweep(path: &Path, sets: &[(String, String)]) -> Result<Sweep> {
    let (mut source, mut table) = read(path, sets)?;
    table.remove("sweep");
    let Some(spec) = source.spec.sweep.take() else {
        bail!(
            "{}: no [sweep] table; give one with axes ([sweep.product] decode.budget = [96, 256]), or use `oasis run -c`",
            path.display()
        );
    };
    let axes = axes(&spec).with_context(|| format!("{}", path.display()))?;
    for key in axes.iter().flat_map(|a| &a.keys) {
        if source.set_below(key).is_some() {
            bail!("--set {key}: it is an axis of the sweep; change the axis, or remove it");
        }
    }
    Ok(Sweep { source, axes, table })
}

fn axes(spec: &SweepSpec) -> Result<Vec<Axis>> {
    let mut axes = Vec::new();
    let mut product = Values::new();
    leaves(&spec.product, "", &mut product);
    for (key, value) in product {
        let list = list("sweep.product", &key, value)?;
        axes.push(Axis { keys: vec![key], values: list.into_iter().map(|v| vec![v]).collect() });
    }
    for (i, table) in spec.zip.iter().enumerate() {
        let mut columns = Values::new();
        leaves(table, "", &mut columns);
        axes.push(zipped(&format!("sweep.zip {i}"), columns)?);
    }
    if axes.is_empty() {
        bail!(Error::setting(
            "sweep",
            "no axis; give [sweep.product] or [[sweep.zip]] keys with lists of values"
        ));
    }
    let mut seen = Vec::new();
    for key in axes.iter().flat_map(|a| &a.keys) {
        if seen.contains(&key) {
            bail!(Error::setting(format!("sweep.{key}"), "two axes have this key; keep one of them"));
        }
        check_key(key)?;
        seen.push(key);
    }
    Ok(axes)
}

/// Dotted keys of a table down to what is no table.
fn leaves(table: &toml::Table, at: &str, out: &mut Values) {
    for (key, value) in table {
        let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        match value {
            toml::Value::Table(below) => leaves(below, &path, out),
            _ => out.push((path, value.clone())),
        }
    }
}

fn list(table: &str, key: &str, value: toml::Value) -> Result<Vec<toml::Value>> {
    match value {
        toml::Value::Array(list) if list.is_empty() => {
            bail!(Error::setting(
                format!("{table}.{key}"),
                "an axis without values leaves nothing to run; give one or remove it"
            ))
        }
        toml::Value::Array(list) => Ok(list),
        other => {
            bail!(Error::setting(format!("{table}.{key}"), format!("{other} is no list; write [{other}]")))
        }
    }
}

fn zipped(table: &str, columns: Values) -> Result<Axis> {
    let (mut keys, mut lists) = (Vec::new(), Vec::new());
    for (key, value) in columns {
        lists.push(list(table, &key, value)?);
        keys.push(key);
    }
    let Some(length) = lists.first().map(Vec::len) else {
        bail!(Error::setting(table, "no key; give keys with lists of one length, or remove it"));
    };
    if let Some(i) = lists.iter().position(|l| l.len() != length) {
        bail!(Error::setting(
            table,
            format!(
                "`{}` has {length} values and `{}` has {}; zipped keys advance together, so give both the same number, or \
                 move one to [sweep.product]",
                keys[0],
                keys[i],
                lists[i].len()
            )
        ));
    }
    let values = (0..length).map(|i| lists.iter().map(|l| l[i].clone()).collect()).collect();
    Ok(Axis { keys, values })
}

/// Refuses keys that name nothing, or nothing that changes a result.
fn check_key(key: &str) -> Result<()> {
    let refuse = |what: &str| Err(Error::setting(format!("sweep.{key}"), what));
    let (table, rest) = key.split_once('.').unwrap_or((key, ""));
    let known = ["run", "model", "task", "decode", "cell"];
    if table == "grid" {
        refuse("an axis of [grid] is an axis already; sweep the key itself (decode.KEY)")?;
    }
    if !known.contains(&table) {
        return Err(Error::unknown_name("table", table, known))
            .with_context(|| format!("sweep axis `{key}`"));
    }
    if rest.is_empty() {
        refuse("it names a whole table; write TABLE.KEY, as in decode.budget")?;
    }
    if ["run.name", "run.jobs"].contains(&key) {
        refuse("it changes no result; remove the axis")?;
    }
    let decode_key = rest.split('.').next().unwrap_or_default();
    if table == "decode" && !DECODE_KEYS.contains(&decode_key) {
        let unknown = Error::unknown_name("key", decode_key, DECODE_KEYS.iter().copied());
        return Err(unknown).with_context(|| format!("sweep axis `{key}`"));
    }
    Ok(())
}

/// Whether a key belongs to cells, so that its values can share a run.
fn of_cells(key: &str) -> bool {
    key.starts_with("decode.") || key.starts_with("cell.")
}

/// `a.b=1, c.d=x`.
pub fn written(values: &[(String, toml::Value)]) -> String {
    values.iter().map(|(k, v)| format!("{k}={}", shown(v))).collect::<Vec<_>>().join(", ")
}

/// A value without the quotes of a string.
pub fn shown(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Sweep {
    /// `run.name`, else the file's.
    pub fn name(&self) -> String {
        self.source.name()
    }

    /// All combinations, the first axis slowest.
    pub fn points(&self) -> Vec<Values> {
        let mut points = vec![Values::new()];
        for axis in &self.axes {
            let place = |values: &Vec<toml::Value>| -> Values {
                axis.keys.iter().cloned().zip(values.iter().cloned()).collect()
            };
            let longer = |point: &Values| {
                axis.values.iter().map(|v| [point.clone(), place(v)].concat()).collect::<Vec<_>>()
            };
            points = points.iter().flat_map(longer).collect();
        }
        points
    }

    /// The configurations, grouped into runs, in the order in which the axes first reach them.
    ///
    /// # Errors
    /// A key or value that the tables refuse, with the combination that has it.
    pub fn groups(&self) -> Result<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        for point in self.points() {
            let source = self.at(&point).with_context(|| format!("sweep point {}", written(&point)))?;
            let values: Values = point.into_iter().filter(|(key, _)| !of_cells(key)).collect();
            match groups.iter_mut().find(|g| g.values == values) {
                Some(group) => group.sources.push(source),
                None => groups.push(Group { values, sources: vec![source] }),
            }
        }
        Ok(groups)
    }

    fn at(&self, point: &Values) -> Result<Source> {
        let mut table = self.table.clone();
        let mut set: BTreeMap<String, Origin> = self.source.set.clone();
        for (key, value) in point {
            place(&mut table, key, value, Origin::Sweep, &mut set)?;
        }
        Ok(Source { spec: typed_again(&table)?, set, ..self.source.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(sweep: &str) -> Result<Sweep> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sweep.toml");
        let text = format!(
            "[[task]]\nname = \"kv\"\nlength = 512\n[decode]\nbudget = 96\n[[cell]]\nlabel = \"a\"\n[sweep]\n{sweep}"
        );
        std::fs::write(&path, text).unwrap();
        load_sweep(&path, &[])
    }

    fn points(sweep: &str) -> Vec<String> {
        load(sweep).unwrap().points().iter().map(|p| written(p)).collect()
    }

    fn refused(sweep: &str, fragments: &[&str]) {
        let error = match load(sweep) {
            Ok(sweep) => format!("{:#}", sweep.groups().map(|g| g.len()).expect_err("accepted")),
            Err(error) => format!("{error:#}"),
        };
        for fragment in fragments {
            assert!(error.contains(fragment), "`{fragment}` is not in: {error}");
        }
    }

    #[test]
    fn a_product_is_every_combination_in_the_order_of_its_keys() {
        let expected = [
            "decode.budget=96, decode.cap=1",
            "decode.budget=96, decode.cap=unlimited",
            "decode.budget=128, decode.cap=1",
            "decode.budget=128, decode.cap=unlimited",
        ];
        assert_eq!(
            points("product.decode.cap = [1, \"unlimited\"]\nproduct.decode.budget = [96, 128]\n"),
            expected
        );
        assert_eq!(
            points("product.\"decode.budget\" = [96, 128]\nproduct.\"decode.cap\" = [1, \"unlimited\"]\n"),
            expected
        );
    }

    #[test]
    fn zipped_keys_advance_together_inside_the_product() {
        let text =
            "product.run.seed = [0, 1]\n[[sweep.zip]]\ndecode.budget = [96, 128]\ndecode.cap = [1, 2]\n";
        let expected = [
            "run.seed=0, decode.budget=96, decode.cap=1",
            "run.seed=0, decode.budget=128, decode.cap=2",
            "run.seed=1, decode.budget=96, decode.cap=1",
            "run.seed=1, decode.budget=128, decode.cap=2",
        ];
        assert_eq!(points(text), expected);
        let groups = load(text).unwrap().groups().unwrap();
        let shape: Vec<_> = groups.iter().map(|g| (written(&g.values), g.sources.len())).collect();
        assert_eq!(shape, [("run.seed=0".to_owned(), 2), ("run.seed=1".to_owned(), 2)]);
        assert_eq!(groups[1].sources[1].spec.run.seed, Some(1));
        assert_eq!(groups[1].sources[1].origin("run.seed", true), Origin::Sweep);
        assert_eq!(groups[1].sources[0].spec.decode.cap.map(|c| c.to_string()).as_deref(), Some("1"));
    }

    #[test]
    fn axes_that_mean_nothing_are_refused_with_the_way_out() {
        let zip = "[[sweep.zip]]\ndecode.budget = [96, 128]\ndecode.cap = [1]\n";
        refused(zip, &["sweep.zip 0", "`decode.budget` has 2 values", "`decode.cap` has 1", "sweep.product"]);
        refused("product.decode.budgt = [96]\n", &["budgt", "did you mean `budget`"]);
        refused("product.decoed.budget = [96]\n", &["decoed", "did you mean `decode`"]);
        refused("product.run.sed = [1]\n", &["run.sed", "did you mean `seed`"]);
        refused("product.decode.budget = 96\n", &["sweep.product.decode.budget", "no list", "[96]"]);
        refused("product.decode.budget = []\n", &["sweep.product.decode.budget", "without values"]);
        refused("product.decode.budget = [\"many\"]\n", &["decode.budget=many", "10%"]);
        refused("product.grid.budget = [[1]]\n", &["grid.budget", "decode.KEY"]);
        refused("product.run.jobs = [1, 2]\n", &["run.jobs", "changes no result"]);
        refused("product.cell.3.cap = [1]\n", &["cell", "no entry 3"]);
        refused("\n", &["sweep", "no axis"]);
        refused("produkt.decode.cap = [1]\n", &["produkt", "did you mean `product`"]);
        let twice = "product.decode.cap = [1]\n[[sweep.zip]]\ndecode.cap = [1]\n";
        refused(twice, &["sweep.decode.cap", "two axes"]);
    }
}
