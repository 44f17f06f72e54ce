//! The chart beside the table: for every mark, how far `fanout` is from what it is compared with, and where the mark stands.

use std::fmt::Write as _;

use crate::report::Verdict;

pub struct Bar {
    pub name: String,
    pub verdict: Verdict,
}

const LINE: usize = 22;
const TOP: usize = 58;
const NAMES: f64 = 400.0;
const SCALE: f64 = 150.0;
/// Longer bars are cut here.
const LONGEST: f64 = 2.5;

pub fn draw(caption: &str, bars: &[Bar]) -> String {
    let (width, height) = (NAMES + SCALE * LONGEST + 70.0, TOP + LINE * bars.len() + 20);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"14\">fanout's time as a part of the other's: shorter is better, \
         the line is the mark</text>\n\
         <text x=\"12\" y=\"38\" fill=\"#666\">{}</text>\n",
        escape(caption)
    );
    for (at, bar) in bars.iter().enumerate() {
        let y = TOP + LINE * at;
        let Verdict { ratio, at_most, against } = &bar.verdict;
        let colour = if bar.verdict.passes() { "#3a7d44" } else { "#c0392b" };
        let (length, tick) = (SCALE * ratio.min(LONGEST), NAMES + SCALE * at_most.min(LONGEST));
        let label = if bar.name == *against { bar.name.clone() } else { format!("{} / {against}", bar.name) };
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{NAMES}\" y=\"{y}\" width=\"{length:.1}\" height=\"14\" fill=\"{colour}\"/>\
             <line x1=\"{tick:.1}\" x2=\"{tick:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"black\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{}\" fill=\"#333\">{ratio:.2}</text>",
            NAMES - 8.0,
            y + 12,
            escape(&shorten(&label)),
            y - 2,
            y + 16,
            NAMES + SCALE * ratio.max(*at_most).min(LONGEST) + 6.0,
            y + 12,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn shorten(label: &str) -> String {
    const MOST: usize = 62;
    if label.chars().count() <= MOST {
        return label.to_owned();
    }
    label.chars().take(MOST - 1).chain(['…']).collect()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_stands_in_the_colour_of_its_verdict() {
        let bar = |ratio| Bar {
            name: "drain/1 <x>".into(),
            verdict: Verdict { ratio, at_most: 0.8, against: "naive".into() },
        };
        let svg = draw("today", &[bar(0.5), bar(9.0)]);
        assert_eq!(svg.matches("#3a7d44").count(), 1);
        assert_eq!(svg.matches("#c0392b").count(), 1);
        assert!(svg.contains("drain/1 &lt;x&gt; / naive"));
        assert!(svg.contains(&format!("width=\"{:.1}\"", SCALE * LONGEST)));
    }
}
