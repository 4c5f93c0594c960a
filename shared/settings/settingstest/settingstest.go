// Package settingstest generates the tables of a daemon's docs/settings.md from the tags and comments of its settings'
// fields, and compares them with the page. Only tests import it.
package settingstest

import (
	stdcmp "cmp"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the tables of docs/settings.md again, as `make docs` does")

// pages are the paths of the page from a test's working directory, which is the daemon's folder or its internal/config.
var pages = []string{"docs/settings.md", "../../docs/settings.md"}

var marked = regexp.MustCompile(`(?s)<!-- table of ([\w.]+) -->\n.*?<!-- end of table -->`)

// table is a struct of settings, the prefix of its variables, and the name of the table that lists them; "" stands for
// the struct's own table.
type table struct {
	of     reflect.Type
	prefix string
	in     string
}

// Tables compares the tables of docs/settings.md with the tags and comments of the fields. Each table is between <!--
// table of Name --> and <!-- end of table -->; the text between tables is written by hand.
//
// The fields of a struct that is a field of config are listed in the table with that field's name. The fields of a
// struct in flat are listed in the table with the struct's name. A struct that config has twice is listed only in the
// first table. A nested field or struct with the tag `table` is listed in the table that the tag names, after that
// table's own rows. show returns the name of a variable in a table: variables with the same name and text share a row.
func Tables(t *testing.T, show func(name string) string, config any, flat ...any) {
	t.Helper()
	comments, own, guests := comments{}, map[string]string{}, map[string]string{}
	add := func(name string, of reflect.Type, prefix string) {
		for _, r := range settingRows(t, table{of, prefix, ""}, "", show, comments) {
			if r.table == "" || r.table == name {
				own[name] += r.text
			} else {
				guests[r.table] += r.text
			}
		}
	}
	for _, v := range flat {
		add(reflect.TypeOf(v).Name(), reflect.TypeOf(v), "")
	}
	seen := map[reflect.Type]bool{}
	for f := range reflect.TypeOf(config).Fields() {
		if !seen[f.Type] {
			add(f.Name, f.Type, f.Tag.Get("envPrefix"))
		}
		seen[f.Type] = true
	}
	page := pages[0]
	text, err := os.ReadFile(page)
	if errors.Is(err, fs.ErrNotExist) {
		page = pages[1]
		text, err = os.ReadFile(page)
	}
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	want := marked.ReplaceAllStringFunc(string(text), func(old string) string {
		name := strings.Fields(old)[3]
		if own[name]+guests[name] == "" {
			t.Errorf("%s has a table of %s, of which there are no settings", page, name)
			return old
		}
		made[name] = true
		return "<!-- table of " + name + " -->\n| Name | Default | Meaning |\n|---|---|---|\n" +
			own[name] + guests[name] + "<!-- end of table -->"
	})
	for _, rows := range []map[string]string{own, guests} {
		for name := range rows {
			if !made[name] {
				t.Errorf("%s has no table of %s", page, name)
			}
		}
	}
	if d := cmp.Diff(want, string(text)); d != "" {
		if *update && !t.Failed() {
			if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s is not what the settings say; make docs writes it again:\n%s", page, d)
	}
}

// row is a line of a table, with the name of the table if a tag names it.
type row struct{ table, text string }

// settingRows returns the rows for the fields of a struct, including nested structs. outer is the comment of the field
// that holds the struct; fields without a comment of their own take it.
func settingRows(t *testing.T, from table, outer string, show func(string) string, comments comments) (rows []row) {
	t.Helper()
	seen := map[row]bool{}
	for f := range from.of.Fields() {
		says := comments.of(t, from.of, f.Name)
		if says == "" {
			says = outer
		}
		in := stdcmp.Or(f.Tag.Get("table"), from.in)
		if f.Type.Kind() == reflect.Struct {
			for _, row := range settingRows(t, table{f.Type, from.prefix + f.Tag.Get("envPrefix"), in}, says, show,
				comments) {
				if !seen[row] {
					rows = append(rows, row)
				}
				seen[row] = true
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("env"), ",")
		if name == "" {
			continue
		}
		name = show(from.prefix + name)
		if says == "" || strings.Contains(says, "|") {
			t.Errorf("%s.%s, which is %s: its comment %q cannot stand in a table", from.of.Name(), f.Name, name, says)
		}
		value := ""
		if v := f.Tag.Get("envDefault"); v != "" {
			value = "`" + v + "`"
		}
		if f.Tag.Get("restart") == "true" {
			says += " **R**"
		}
		rows = append(rows, row{in, "| `" + name + "` | " + value + " | " + says + " |\n"})
	}
	return rows
}

// comments maps folders to the comments of the fields of their structs, by Struct.Field.
type comments map[string]map[string]string

// of returns the comment of a field.
func (c comments) of(t *testing.T, of reflect.Type, field string) string {
	t.Helper()
	dir := folder(t, of.PkgPath())
	if c[dir] == nil {
		c[dir] = fieldComments(t, dir)
	}
	return c[dir][of.Name()+"."+field]
}

// folder returns the folder of a package in this module.
func folder(t *testing.T, pkg string) string {
	t.Helper()
	for up := "."; ; up = filepath.Join(up, "..") {
		mod, err := os.ReadFile(filepath.Join(up, "go.mod"))
		if err == nil {
			name, _, _ := strings.Cut(strings.TrimPrefix(string(mod), "module "), "\n")
			return filepath.Join(up, strings.TrimSuffix(strings.TrimPrefix(pkg, name), "_test"))
		}
		if abs, absErr := filepath.Abs(up); !errors.Is(err, fs.ErrNotExist) || absErr != nil ||
			abs == filepath.Dir(abs) {
			t.Fatal(errors.Join(err, absErr))
		}
	}
}

// fieldComments returns the comments of the fields of all structs in a folder, by Struct.Field.
func fieldComments(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					for _, name := range f.Names {
						comments[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
					}
				}
			}
			return true
		})
	}
	return comments
}
