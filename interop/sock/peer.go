// A program that no library can be preloaded into: it makes its system calls by itself.
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	address := "127.0.0.1:" + os.Args[2]
	if os.Args[1] == "serve" {
		serve(address)
		return
	}
	for n := 0; n < 4; n++ {
		if err := call(address, int64(n)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func serve(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	go func() {
		<-end
		os.Exit(0)
	}()
	for {
		connection, err := listener.Accept()
		if err != nil {
			os.Exit(1)
		}
		go func() {
			defer connection.Close()
			buffer := make([]byte, 70000)
			for {
				some, err := connection.Read(buffer)
				if some > 0 {
					if _, err := connection.Write(buffer[:some]); err != nil {
						return
					}
				}
				if err != nil {
					return
				}
			}
		}()
	}
}

func call(address string, seed int64) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	random := rand.New(rand.NewSource(seed))
	for round := 0; round < 8; round++ {
		for _, size := range []int{1, 2, 1000, 5000, 70000} {
			data := make([]byte, size)
			random.Read(data)
			failed := make(chan error, 1)
			go func() {
				_, err := connection.Write(data)
				failed <- err
			}()
			back := make([]byte, size)
			if _, err := io.ReadFull(connection, back); err != nil {
				return err
			}
			if err := <-failed; err != nil {
				return err
			}
			if !bytes.Equal(back, data) {
				return fmt.Errorf("the echo is not what was sent")
			}
		}
	}
	if err := connection.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if some, err := connection.Read(make([]byte, 1)); some != 0 || err != io.EOF {
		return fmt.Errorf("the end was expected, not %d bytes and %v", some, err)
	}
	return nil
}
