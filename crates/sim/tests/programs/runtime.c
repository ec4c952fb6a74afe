/* Asks the CUDA runtime for memory and gives it back. Ends with the first code that is not 0. */
extern int cudaMalloc(void **pointer, unsigned long bytes);
extern int cudaFree(void *pointer);

int main(void) {
    void *memory = 0;
    int code = cudaMalloc(&memory, 1 << 20);
    return code != 0 ? code : cudaFree(memory);
}
