package store

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gatehouse/migrations"
)

// statement identifies an SQL statement of this package: it is an index into statements and into DB.sql.
type statement int

// statements are the texts of all SQL statements of this package. In them, names of tables are in braces, such as
// {users}.
var statements []string

// define registers the text of an SQL statement. It is called to initialize package variables. Open replaces the names
// in braces, for each DB.
func define(sql string) statement {
	statements = append(statements, strings.TrimSpace(sql))
	return statement(len(statements) - 1)
}

var parameter = regexp.MustCompile(`\$\d+`)

// numberFrom renumbers the SQL parameters in part, a part of a statement: $1 is replaced by the parameter whose number
// is first, $2 by the next one, and so on.
func numberFrom(first int, part string) string {
	return parameter.ReplaceAllStringFunc(part, func(p string) string {
		n, _ := strconv.Atoi(p[1:]) // the expression matches only digits
		return fmt.Sprintf("$%d", first-1+n)
	})
}

// namesOf returns the names in a list of columns, such as userColumns, without the table's alias.
func namesOf(columns string) []string {
	names := strings.Split(columns, ",")
	for i, c := range names {
		names[i] = strings.TrimSpace(c[strings.LastIndexByte(c, '.')+1:])
	}
	return names
}

// insertInto returns the statement that inserts a row into a table. Its parameters are the columns' values, in the
// order of columns.
func insertInto(table, columns string) string {
	names := namesOf(columns)
	parameters := make([]string, len(names))
	for i := range names {
		parameters[i] = fmt.Sprintf("$%d", i+1)
	}
	return "insert into " + table + " (" + strings.Join(names, ", ") + ")\nvalues (" +
		strings.Join(parameters, ", ") + ")"
}

// filler returns a function that replaces each name in braces by the namespace and the name. It does not change other
// braces, such as those of '{}'::jsonb.
func filler(namespace string) func(string) string {
	pairs := make([]string, 0, 2*len(migrations.Names))
	for _, name := range migrations.Names {
		pairs = append(pairs, "{"+name+"}", namespace+name)
	}
	return strings.NewReplacer(pairs...).Replace
}
