//! Laws that hold for the systems that their files name: each file is a case, whose rows say what holds and show figures.

use offramp_model::claims;

#[test]
fn every_law_holds_and_fails_where_its_figures_do_not() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/laws");
    let cases = claims::read(&[directory.into()]).unwrap();
    let table = claims::check(&cases, |_| false, 0).unwrap();
    let broken: Vec<_> = table.rows.iter().filter(|row| row.ok != Some(true)).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    let law = "published = \"x\"\nsource = \"x\"\nsystem = \"486-wd8003ep\"\nworkload = \"ttcp-receive\"\n\
               [[row]]\nshows = \"{{ interrupts }}\"\nholds = \"interrupts == 0\"\n";
    let wrong = claims::Case::parse(law, "wrong.toml".as_ref()).unwrap();
    assert_eq!(claims::check(&[wrong], |_| false, 0).unwrap().rows[0].ok, Some(false));
}
