package main

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the tables of docs/settings.md again, as `make docs` does")

// TestDocs_settingsTables makes each table of docs/settings.md from the tags and comments of a struct's fields, and
// compares. What stands between the tables is written by hand.
func TestDocs_settingsTables(t *testing.T) {
	tables := map[string]reflect.Type{"freeConfig": reflect.TypeFor[freeConfig]()}
	for f := range reflect.TypeFor[config]().Fields() {
		tables[f.Type.Name()] = f.Type
	}
	comments, made := fieldComments(t), map[string]bool{}
	page := document(t, "docs/settings.md")
	want := regexp.MustCompile(`(?s)<!-- table of (\w+) -->\n.*?<!-- end of table -->`).ReplaceAllStringFunc(page, func(old string) string {
		name := strings.Fields(old)[3]
		if tables[name] == nil {
			t.Errorf("docs/settings.md has a table of %s, which is not among the settings", name)
			return old
		}
		made[name] = true
		rows := settingRows(t, tables[name], "", "", comments)
		return "<!-- table of " + name + " -->\n| Name | Default | Meaning |\n|---|---|---|\n" + strings.Join(rows, "") + "<!-- end of table -->"
	})
	for name := range tables {
		if !made[name] {
			t.Errorf("docs/settings.md has no table of %s", name)
		}
	}
	if d := cmp.Diff(want, page); d != "" {
		if *update && !t.Failed() {
			if err := os.WriteFile("docs/settings.md", []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("docs/settings.md is not what the settings say; make docs writes it again:\n%s", d)
	}
}

// settingRows are the rows of a struct's settings, with what is nested in it. outer is the comment of the field that
// holds the struct: fields without one of their own take it. One row stands for the same setting of all providers,
// or hooks.
func settingRows(t *testing.T, of reflect.Type, prefix, outer string, comments map[string]string) (rows []string) {
	t.Helper()
	seen := map[string]bool{}
	for f := range of.Fields() {
		says := comments[of.Name()+"."+f.Name]
		if says == "" {
			says = outer
		}
		if f.Type.Kind() == reflect.Struct {
			for _, row := range settingRows(t, f.Type, prefix+f.Tag.Get("envPrefix"), says, comments) {
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
		name = strings.Replace(collapsed(prefix+name), "_OIDC_NAME_", "_OIDC_<NAME>_", 1)
		if says == "" || strings.Contains(says, "|") {
			t.Errorf("%s.%s, which is %s: its comment %q cannot stand in a table", of.Name(), f.Name, name, says)
		}
		value := ""
		if v := f.Tag.Get("envDefault"); v != "" {
			value = "`" + v + "`"
		}
		if f.Tag.Get("restart") == "true" {
			says += " **R**"
		}
		rows = append(rows, "| `"+name+"` | "+value+" | "+says+" |\n")
	}
	return rows
}

// fieldComments are the comments of the fields of this package's structs, by Struct.Field.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("config*.go")
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
