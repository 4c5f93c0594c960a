package store

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gatehouse/migrations"
)

// statement is the index of an SQL text in statements.
type statement int

// statements are all SQL texts of this package, with names in braces.
var statements []string

// define registers an SQL text. It initializes package variables: Open replaces the names in the text, once for each
// DB.
func define(sql string) statement {
	statements = append(statements, strings.TrimSpace(sql))
	return statement(len(statements) - 1)
}

var parameter = regexp.MustCompile(`\$\d+`)

// numberFrom renumbers the parameters of a part of a statement: $1 becomes the number first.
func numberFrom(first int, part string) string {
	return parameter.ReplaceAllStringFunc(part, func(p string) string {
		n, _ := strconv.Atoi(p[1:]) // as the expression matches
		return fmt.Sprintf("$%d", first-1+n)
	})
}

// namesOf returns the names in a list of columns, such as userColumns, without their alias.
func namesOf(columns string) []string {
	names := strings.Split(columns, ",")
	for i, c := range names {
		names[i] = strings.TrimSpace(c[strings.LastIndexByte(c, '.')+1:])
	}
	return names
}

// insertInto returns the statement that inserts a row of columns, which are its parameters in this order.
func insertInto(table, columns string) string {
	names := namesOf(columns)
	parameters := make([]string, len(names))
	for i := range names {
		parameters[i] = fmt.Sprintf("$%d", i+1)
	}
	return "insert into " + table + " (" + strings.Join(names, ", ") + ")\nvalues (" +
		strings.Join(parameters, ", ") + ")"
}

// filler returns a function that replaces each name in braces by the namespace and the name. Other braces stay:
// '{}'::jsonb.
func filler(namespace string) func(string) string {
	pairs := make([]string, 0, 2*len(migrations.Names))
	for _, name := range migrations.Names {
		pairs = append(pairs, "{"+name+"}", namespace+name)
	}
	return strings.NewReplacer(pairs...).Replace
}
