package store

import (
	"fmt"
	"strings"

	"gatehouse/migrations"
)

// statement is the number of one SQL text of this package.
type statement int

// statements are all texts, with names in braces.
var statements []string

// define is for package variables: the names in the text are filled in once, when a DB is opened.
func define(sql string) statement {
	statements = append(statements, strings.TrimSpace(sql))
	return statement(len(statements) - 1)
}

// param names the parameters of a part of a statement, whose first one has that number.
func param(first int) func(int) string {
	return func(i int) string { return fmt.Sprintf("$%d", first+i) }
}

// filler puts the namespace before the names in braces. Other braces stay: '{}'::jsonb.
func filler(namespace string) func(string) string {
	pairs := make([]string, 0, 2*len(migrations.Names))
	for _, name := range migrations.Names {
		pairs = append(pairs, "{"+name+"}", namespace+name)
	}
	return strings.NewReplacer(pairs...).Replace
}
