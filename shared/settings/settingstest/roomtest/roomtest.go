// Package roomtest declares settings as a package of a daemon does, for the test of package settingstest.
package roomtest

// Settings has a field Addr without a comment: it takes the comment of the field that holds the Settings.
type Settings struct {
	Addr string `env:"ADDR"`
	// How many there are.
	Size int `env:"SIZE" envDefault:"10"`
}
