// Package doctest reads README.md and the pages in docs/ for tests that compare them with the program. Only tests
// import it, and they run in the daemon's folder.
package doctest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Block is a fenced block of a page, or a table.
type Block struct {
	Page  string
	Line  int
	Lang  string // of a fence: yaml, sh, …; table for a table
	File  string // the text after the language: the name that the page gives the file
	Text  string
	Cells [][]string // of a table, with its head
}

// Place returns where b begins, as page:line.
func (b Block) Place() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

// Document returns the text of README.md or of a page in docs/.
func Document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Documents returns the paths of README.md and, after it, of the pages in docs/.
func Documents(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"README.md"}, pages...)
}

// All returns the blocks of all documents, in order.
func All(t *testing.T) (all []Block) {
	t.Helper()
	for _, path := range Documents(t) {
		all = append(all, Blocks(t, path)...)
	}
	return all
}

// Blocks cuts a page into its fenced blocks and tables, in order.
func Blocks(t *testing.T, page string) (all []Block) {
	t.Helper()
	lines := strings.Split(Document(t, page), "\n")
	for i := 0; i < len(lines); i++ {
		b := Block{Page: page, Line: i + 1}
		switch info, fence := strings.CutPrefix(lines[i], "```"); {
		case fence:
			b.Lang, b.File, _ = strings.Cut(info, " ")
			for i++; i < len(lines) && lines[i] != "```"; i++ {
				b.Text += lines[i] + "\n"
			}
		case strings.HasPrefix(lines[i], "|"):
			b.Lang = "table"
			for ; i < len(lines) && strings.HasPrefix(lines[i], "|"); i++ {
				b.Cells = append(b.Cells, tableCells(lines[i]))
			}
		default:
			continue
		}
		all = append(all, b)
	}
	return all
}

// tableCells splits a row at the bars that no backslash escapes.
func tableCells(row string) []string {
	row = strings.ReplaceAll(strings.Trim(row, "|"), `\|`, "\x00")
	cells := strings.Split(row, "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], "\x00", "|"))
	}
	return cells
}

// CodeSpan matches a code span, the text between two backquotes in a line of Markdown.
var CodeSpan = regexp.MustCompile("`([^`]*)`")

// IsRules reports whether b is a file of rules.
func IsRules(b Block) bool { return b.Lang == "yaml" && strings.HasPrefix(b.Text, "domain:") }
