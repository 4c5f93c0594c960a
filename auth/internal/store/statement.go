package store

import (
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

// filler puts the namespace before the names in braces. Other braces stay: '{}'::jsonb.
func filler(namespace string) func(string) string {
	pairs := make([]string, 0, 2*len(migrations.Names))
	for _, name := range migrations.Names {
		pairs = append(pairs, "{"+name+"}", namespace+name)
	}
	return strings.NewReplacer(pairs...).Replace
}
