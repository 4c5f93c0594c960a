//go:build !race

package chaos

const underRace = false
