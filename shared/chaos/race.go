//go:build race

package chaos

const underRace = true
