//go:build !linux

package main

import "log"

func main() { log.Fatal("bench reads /proc and waits by ppoll: it needs Linux") }
