//! Values that can be written in more than one way.

use oasis_core::settings::Cap;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// A budget: tokens, or a share of the context (`"10%"`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Resident tokens per KV head.
    Tokens(usize),
    /// Share of prompt and answer, 0..1.
    Share(f64),
}

impl Budget {
    /// Tokens for a context of `length` tokens, rounded down to a whole token.
    pub fn tokens(self, length: usize) -> usize {
        match self {
            Self::Tokens(n) => n,
            Self::Share(f) => (f * length as f64) as usize,
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(n) => write!(f, "{n}"),
            Self::Share(x) => write!(f, "{}%", trim(x * 100.0)),
        }
    }
}

/// A number without digits that only binary fractions have.
fn trim(x: f64) -> f64 {
    (x * 1e9).round() / 1e9
}

/// `"12.5%"` as 0.125.
fn percent(text: &str) -> Option<f64> {
    let number = text.trim().strip_suffix('%')?.trim().parse::<f64>().ok()?;
    number.is_finite().then_some(number / 100.0)
}

struct BudgetVisitor;

impl Visitor<'_> for BudgetVisitor {
    type Value = Budget;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tokens (256) or a share of the context (\"10%\")")
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Budget, E> {
        usize::try_from(v)
            .map(Budget::Tokens)
            .map_err(|_| E::custom(format!("a budget of {v} tokens; give at least one block")))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Budget, E> {
        percent(v).map(Budget::Share).ok_or_else(|| E::invalid_value(de::Unexpected::Str(v), &self))
    }
}

impl<'de> Deserialize<'de> for Budget {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(BudgetVisitor)
    }
}

impl Serialize for Budget {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Tokens(n) => s.serialize_u64(*n as u64),
            Self::Share(_) => s.serialize_str(&self.to_string()),
        }
    }
}

/// A fetch cap: a count of blocks (integer), a share of K (a number with a point) or `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FetchCap(pub Cap);

impl fmt::Display for FetchCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Cap::Unlimited => f.write_str("unlimited"),
            Cap::Blocks(n) => write!(f, "{n}"),
            Cap::Fraction(x) => write!(f, "{x:?}"),
        }
    }
}

struct CapVisitor;

impl Visitor<'_> for CapVisitor {
    type Value = FetchCap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a count of blocks (3), a share of the selectable blocks (0.05) or \"unlimited\"")
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<FetchCap, E> {
        let blocks = usize::try_from(v).map_err(|_| {
            E::custom(format!("a fetch cap of {v} blocks; 0 fetches nothing, \"unlimited\" has no cap"))
        })?;
        Ok(FetchCap(Cap::Blocks(blocks)))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<FetchCap, E> {
        if !(0.0..=1.0).contains(&v) {
            let what = format!(
                "a fetch cap of {v:?}; a share lies between 0.0 and 1.0, a count of blocks is written without a point, \
                 \"unlimited\" has no cap"
            );
            return Err(E::custom(what));
        }
        Ok(FetchCap(Cap::Fraction(v)))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<FetchCap, E> {
        match v {
            "unlimited" => Ok(FetchCap(Cap::Unlimited)),
            _ => Err(E::invalid_value(de::Unexpected::Str(v), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for FetchCap {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(CapVisitor)
    }
}

impl Serialize for FetchCap {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Cap::Unlimited => s.serialize_str("unlimited"),
            Cap::Blocks(n) => s.serialize_u64(n as u64),
            Cap::Fraction(x) => s.serialize_f64(x),
        }
    }
}

/// How many of a task's samples run: a count or a share (`0.1`, `"10%"`), taken at equal strides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// So many.
    Count(usize),
    /// This share, at least one.
    Share(f64),
}

impl Limit {
    /// Samples of `n` that run.
    pub fn of(self, n: usize) -> usize {
        match self {
            Self::Count(c) => c.min(n),
            Self::Share(f) => ((f * n as f64).round() as usize).clamp(1.min(n), n),
        }
    }
}

impl std::str::FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("`{text}` is no limit: give a count (4) or a share above 0 and below 1 (0.25 or 25%)");
        let share = |f: f64| if f > 0.0 && f < 1.0 { Ok(Self::Share(f)) } else { Err(bad()) };
        if let Ok(n) = text.parse::<usize>() {
            return if n > 0 { Ok(Self::Count(n)) } else { Err(bad()) };
        }
        match percent(text).or_else(|| text.parse().ok()) {
            Some(f) => share(f),
            None => Err(bad()),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => write!(f, "{n}"),
            Self::Share(x) => write!(f, "{x:?}"),
        }
    }
}

struct LimitVisitor;

impl Visitor<'_> for LimitVisitor {
    type Value = Limit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a count of samples (4) or a share (0.25 or \"25%\")")
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Limit, E> {
        v.to_string().parse().map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Limit, E> {
        format!("{v:?}").parse().map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Limit, E> {
        v.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(LimitVisitor)
    }
}

/// A plug-in: its name alone, or a table with its name and its own keys.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicySpec {
    /// Name in its table.
    pub name: String,
    /// Its own keys.
    pub table: toml::Table,
}

impl PolicySpec {
    /// Without keys of its own.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), table: toml::Table::new() }
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (i, (key, value)) in self.table.iter().enumerate() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            write!(f, "{}{key}={value}", if i == 0 { "(" } else { ", " })?;
        }
        if self.table.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

struct PolicyVisitor;

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = PolicySpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name (\"minmax\") or a table with a name ({ name = \"quantized\", bits = 4 })")
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<PolicySpec, E> {
        Ok(PolicySpec::named(v))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PolicySpec, A::Error> {
        let (mut name, mut table) = (None, toml::Table::new());
        while let Some(key) = map.next_key::<String>()? {
            if key == "name" {
                name = Some(map.next_value::<String>()?);
            } else {
                table.insert(key, map.next_value()?);
            }
        }
        let name = name.ok_or_else(|| de::Error::missing_field("name"))?;
        Ok(PolicySpec { name, table })
    }
}

impl<'de> Deserialize<'de> for PolicySpec {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(PolicyVisitor)
    }
}

impl Serialize for PolicySpec {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.table.is_empty() {
            return s.serialize_str(&self.name);
        }
        let mut table = self.table.clone();
        table.insert("name".to_owned(), self.name.clone().into());
        table.serialize(s)
    }
}

/// One value or a list of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Many<T>(pub Vec<T>);

struct ManyVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ManyVisitor<T> {
    type Value = Many<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Many<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        Ok(Many(values))
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Many<T>, E> {
        T::deserialize(de::value::I64Deserializer::new(v)).map(|v| Many(vec![v]))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Many<T>, E> {
        T::deserialize(de::value::F64Deserializer::new(v)).map(|v| Many(vec![v]))
    }

    fn visit_bool<E: de::Error>(self, v: bool) -> Result<Many<T>, E> {
        T::deserialize(de::value::BoolDeserializer::new(v)).map(|v| Many(vec![v]))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Many<T>, E> {
        T::deserialize(de::value::StrDeserializer::new(v)).map(|v| Many(vec![v]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Many<T>, A::Error> {
        T::deserialize(de::value::MapAccessDeserializer::new(map)).map(|v| Many(vec![v]))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(ManyVisitor(PhantomData))
    }
}

impl<T: Serialize> Serialize for Many<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(s),
            many => many.serialize(s),
        }
    }
}
