//! The files of a crate and their imports, parsed by `syn`: use trees, paths in code and paths in macros. A re-export
//! is resolved to the file that defines the name. Modules under `cfg(test)` do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, UseTree, Visibility};

/// The sorted module paths of files in an import cycle: `a::b` for `a/b.rs`.
pub type Circle = Vec<String>;

/// A module path from the crate's root.
type Module = Vec<String>;

/// The names and imports of one file.
#[derive(Default)]
struct File {
    /// Names defined in the file.
    names: BTreeSet<String>,
    /// Names re-exported by the file, with their paths from the crate's root.
    exports: BTreeMap<String, Module>,
    /// Paths used in the file, from the crate's root.
    uses: Vec<Module>,
}

/// A visitor of one file's code.
struct Reader<'a> {
    module: Module,
    /// Inline modules around the visited item.
    inline: Module,
    files: &'a BTreeSet<Module>,
    file: File,
    /// Identifiers in code outside use items. A re-exported name among them counts as used in the file.
    words: BTreeSet<String>,
    reexported: Vec<(String, Module)>,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string().split([' ', '(', ')', ',']).any(|word| word == "test"))
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the name defined by an item.
fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Collects the paths of a use tree, each with its name in scope.
fn leaves(tree: &UseTree, before: &[String], found: &mut Vec<(String, Module)>) {
    let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
    match tree {
        UseTree::Path(path) => leaves(&path.tree, &with(&path.ident), found),
        UseTree::Name(leaf) if leaf.ident == "self" => {
            found.push((before.last().cloned().unwrap_or_default(), before.to_vec()));
        }
        UseTree::Name(leaf) => found.push((leaf.ident.to_string(), with(&leaf.ident))),
        UseTree::Rename(leaf) => found.push((leaf.rename.to_string(), with(&leaf.ident))),
        UseTree::Glob(_) => found.push(("*".to_owned(), before.to_vec())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, before, found)),
    }
}

impl Reader<'_> {
    /// Returns a path from the crate's root. Returns `None` if the path leads to another crate or names an item of this
    /// file.
    fn absolute(&self, path: &[String]) -> Option<Module> {
        let mut here = [&self.module[..], &self.inline[..]].concat();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (here, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    here.pop()?;
                    rest = &rest[1..];
                }
            }
            first => {
                let child = [&here[..], &[first.to_owned()]].concat();
                self.files.contains(&child).then_some(())?;
            }
        }
        here.extend_from_slice(rest);
        Some(here)
    }

    fn uses(&mut self, path: &[String]) {
        if path.len() > 1 {
            let path = self.absolute(path);
            self.file.uses.extend(path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(attributes(item)) {
            return;
        }
        if self.inline.is_empty() {
            self.file.names.extend(name(item));
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_some() {
            self.inline.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.inline.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let mut found = Vec::new();
        leaves(&item.tree, &[], &mut found);
        for (name, path) in found {
            match self.absolute(&path) {
                Some(path) if !matches!(item.vis, Visibility::Inherited) => self.reexported.push((name, path)),
                Some(path) => self.file.uses.push(path),
                None => {}
            }
        }
    }

    /// Skips the path of `pub(in PATH)`, which is not an import.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Module = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.words.extend(words.first().cloned());
        self.uses(&words);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast Macro) {
        let text = item.tokens.to_string().replace(" :: ", "::");
        for path in text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':') {
            let words: Module = path.split("::").filter(|word| !word.is_empty()).map(str::to_owned).collect();
            self.words.extend(words.first().cloned());
            self.uses(&words);
        }
        visit::visit_macro(self, item);
    }
}

/// Returns the files of a crate: the targets of `mod` items outside tests.
fn modules(source: &Path) -> BTreeMap<Module, syn::File> {
    let mut modules = BTreeMap::new();
    let start = ["lib.rs", "main.rs"].map(|file| source.join(file)).into_iter().find(|file| file.exists());
    let mut open = vec![(Module::new(), start.expect("a crate has a root"))];
    while let Some((module, path)) = open.pop() {
        let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
        for item in &file.items {
            let Item::Mod(item) = item else { continue };
            if item.content.is_none() && !is_test(&item.attrs) {
                let child = [&module[..], &[item.ident.to_string()]].concat();
                let path = source.join(child.join("/")).with_extension("rs");
                assert!(
                    path.exists(),
                    "{} does not exist: a module's file is x.rs, its children's are in x/",
                    path.display()
                );
                open.push((child, path));
            }
        }
        modules.insert(module, file);
    }
    modules
}

/// Returns the file that defines a path's name. The file is the longest prefix of the path that is a file, after
/// resolving re-exports.
fn definer(files: &BTreeMap<Module, File>, path: &[String], depth: usize) -> Option<Module> {
    let len = (0..=path.len()).rev().find(|&len| files.contains_key(&path[..len]))?;
    let (module, rest) = path.split_at(len);
    let file = &files[module];
    let exported = rest.first().filter(|name| !file.names.contains(*name)).and_then(|name| file.exports.get(name));
    match exported {
        Some(export) if depth > 0 => definer(files, &[&export[..], &rest[1..]].concat(), depth - 1),
        _ => Some(module.to_vec()),
    }
}

fn read(source: &Path) -> BTreeMap<Module, File> {
    let modules = modules(source);
    let names: BTreeSet<Module> = modules.keys().cloned().collect();
    let read = |(module, code): (&Module, &syn::File)| {
        let mut reader = Reader {
            module: module.clone(),
            inline: Module::new(),
            files: &names,
            file: File::default(),
            words: BTreeSet::new(),
            reexported: Vec::new(),
        };
        reader.visit_file(code);
        let Reader { mut file, words, reexported, .. } = reader;
        for (name, path) in reexported {
            if words.contains(&name) {
                file.uses.push(path.clone());
            }
            file.exports.insert(name, path);
        }
        (module.clone(), file)
    };
    modules.iter().map(read).collect()
}

/// Returns the import cycles of a crate, sorted: groups of files with an import path between any two.
pub fn circles(source: &Path) -> Vec<Circle> {
    let files = read(source);
    let targets = |(module, file): (&Module, &File)| {
        let to: BTreeSet<Module> = file.uses.iter().filter_map(|path| definer(&files, path, 6)).collect();
        (module.clone(), to)
    };
    let arrows: BTreeMap<Module, BTreeSet<Module>> = files.iter().map(targets).collect();
    let reached = |from: &Module| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(module) = open.pop() {
            for to in arrows[module].iter().filter(|to| *to != module) {
                if reached.insert(to) {
                    open.push(to);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = arrows.keys().map(|module| (module, reached(module))).collect();
    let with = |module: &Module| -> Circle {
        let both = |to: &&Module| reached[*to].contains(module);
        reached[module]
            .iter()
            .copied()
            .filter(both)
            .map(|module| if module.is_empty() { "crate".to_owned() } else { module.join("::") })
            .collect()
    };
    let circles: BTreeSet<Circle> = arrows.keys().map(with).filter(|circle| circle.len() > 1).collect();
    circles.into_iter().collect()
}
