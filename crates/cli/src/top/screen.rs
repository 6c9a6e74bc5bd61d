//! The terminal: a new table takes the place of the last.

use std::io::Write;
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use crossterm::style::Print;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};

use crate::fixture::text;

/// A guard that restores the terminal, however the function that holds it ends.
struct Screen;

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(std::io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Show the lines of `look`, again and again, until q, Escape or Ctrl-C.
pub fn show(pause: Duration, mut look: impl FnMut() -> Vec<String>) -> Result<(), String> {
    enable_raw_mode().map_err(text)?;
    let _screen = Screen;
    execute!(std::io::stdout(), EnterAlternateScreen, Hide).map_err(text)?;
    draw(&["looking...  (q: quit)".into()])?;
    let mut due = Instant::now() + pause;
    let mut lines = Vec::new();
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if poll(left).map_err(text)? {
            match read().map_err(text)? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                    if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                }
                Event::Resize(..) => draw(&lines)?,
                _ => {}
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + pause;
            lines = look();
            draw(&lines)?;
        }
    }
}

/// Draw as many lines as there is room for.
fn draw(lines: &[String]) -> Result<(), String> {
    let (width, height) = size().unwrap_or((80, 24));
    let mut out = std::io::stdout().lock();
    for (row, line) in (0..height).zip(lines.iter().map(String::as_str).chain(std::iter::repeat(""))) {
        let line: String = line.chars().take(usize::from(width)).collect();
        queue!(out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine)).map_err(text)?;
    }
    out.flush().map_err(text)
}
