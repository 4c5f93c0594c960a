// Package settingstest makes the tables of a daemon's docs/settings.md from the tags and comments of its settings'
// fields, and compares. Only tests import it.
package settingstest

import (
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

// pages are where a test's working directory may find the page: it is the daemon's own, or its internal/config.
var pages = []string{"docs/settings.md", "../../docs/settings.md"}

var marked = regexp.MustCompile(`(?s)<!-- table of ([\w.]+) -->\n.*?<!-- end of table -->`)

// table is one struct of settings and the prefix of its variables.
type table struct {
	of     reflect.Type
	prefix string
}

// Tables compares the tables of docs/settings.md, each between <!-- table of structName --> and
// <!-- end of table -->, with the fields' tags and comments. What stands between the tables is written by hand. config
// is the struct that holds the structs; flat are further ones. One of another package is called package.structName. A
// struct that config holds twice has one table, under the prefix of the first. A field with the tag `table` is the last
// in the table that it names, in whichever struct it is. show is what a variable is called in a table: variables with
// one name and one text share a row.
func Tables(t *testing.T, show func(name string) string, config any, flat ...any) {
	t.Helper()
	tables := map[string]table{}
	var order []string
	add := func(of reflect.Type, prefix string) {
		name := of.Name()
		if of.PkgPath() != reflect.TypeOf(config).PkgPath() {
			name = of.String()
		}
		if _, there := tables[name]; !there {
			tables[name] = table{of, prefix}
			order = append(order, name)
		}
	}
	for _, v := range flat {
		add(reflect.TypeOf(v), "")
	}
	for f := range reflect.TypeOf(config).Fields() {
		add(f.Type, f.Tag.Get("envPrefix"))
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
	comments, made := comments{}, map[string]bool{}
	own, guests := map[string]string{}, map[string]string{}
	for _, name := range order {
		for _, r := range settingRows(t, tables[name], "", show, comments) {
			if r.table == "" {
				own[name] += r.text
			} else {
				guests[r.table] += r.text
			}
		}
	}
	for name := range guests {
		if _, there := tables[name]; !there {
			t.Errorf("a field has the tag table:%q, and there is no such table", name)
		}
	}
	want := marked.ReplaceAllStringFunc(string(text), func(old string) string {
		name := strings.Fields(old)[3]
		if _, there := tables[name]; !there {
			t.Errorf("%s has a table of %s, which is not among the settings", page, name)
			return old
		}
		made[name] = true
		return "<!-- table of " + name + " -->\n| Name | Default | Meaning |\n|---|---|---|\n" +
			own[name] + guests[name] + "<!-- end of table -->"
	})
	for name := range tables {
		if !made[name] {
			t.Errorf("%s has no table of %s", page, name)
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

// row is a line of a table: of the one that a tag names, or the struct's.
type row struct{ table, text string }

// settingRows are the rows of a struct's settings, with what is nested in it. outer is the comment of the field that
// holds the struct: fields without one of their own take it.
func settingRows(t *testing.T, from table, outer string, show func(string) string, comments comments) (rows []row) {
	t.Helper()
	seen := map[row]bool{}
	for f := range from.of.Fields() {
		says := comments.of(t, from.of, f.Name)
		if says == "" {
			says = outer
		}
		if f.Type.Kind() == reflect.Struct {
			for _, row := range settingRows(t, table{f.Type, from.prefix + f.Tag.Get("envPrefix")}, says, show, comments) {
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
		rows = append(rows, row{f.Tag.Get("table"), "| `" + name + "` | " + value + " | " + says + " |\n"})
	}
	return rows
}

// comments are those of the fields of the structs in a folder, by folder and Struct.Field.
type comments map[string]map[string]string

// of is a field's comment.
func (c comments) of(t *testing.T, of reflect.Type, field string) string {
	t.Helper()
	dir := folder(t, of.PkgPath())
	if c[dir] == nil {
		c[dir] = fieldComments(t, dir)
	}
	return c[dir][of.Name()+"."+field]
}

// folder is where a package of this module lies.
func folder(t *testing.T, pkg string) string {
	t.Helper()
	for up := "."; ; up = filepath.Join(up, "..") {
		mod, err := os.ReadFile(filepath.Join(up, "go.mod"))
		if err == nil {
			name, _, _ := strings.Cut(strings.TrimPrefix(string(mod), "module "), "\n")
			return filepath.Join(up, strings.TrimSuffix(strings.TrimPrefix(pkg, name), "_test"))
		}
		if abs, absErr := filepath.Abs(up); !errors.Is(err, fs.ErrNotExist) || absErr != nil || abs == filepath.Dir(abs) {
			t.Fatal(errors.Join(err, absErr))
		}
	}
}

// fieldComments are the comments of the fields of the structs in a folder, by Struct.Field.
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
