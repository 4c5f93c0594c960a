// Package roomtest has settings as a package of a daemon declares them, for the test of package settingstest.
package roomtest

// Settings takes the address's comment from the field that holds it.
type Settings struct {
	Addr string `env:"ADDR"`
	// How many there are.
	Size int `env:"SIZE" envDefault:"10"`
}
